"""A seeded notebook draws in its cells on workers, and after them, what one process draws."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.kernel_driver import SESSION, Kernel

SEED_ALL = """
import random, numpy as np, keras, tensorflow as tf
keras.utils.set_random_seed(11)
np.random.seed(5)
random.seed(3)
tf.random.set_seed(7)
drawn = [random.random(), np.random.normal(), float(tf.random.normal([])), float(keras.random.normal([]))]
"""
SEED_PYTHON = """
import random, numpy as np
np.random.seed(5)
random.seed(3)
drawn = [random.random(), np.random.normal()]
"""
TRAIN = """
import random, numpy as np, keras, tensorflow as tf
x, y = np.random.normal(size=(32, 3)).astype("float32"), np.random.normal(size=(32, 1)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("sgd", "mse")
in_cell = [model.layers[0].kernel.numpy().tolist(), random.random(), float(keras.random.normal([])){drawn}]
model.fit(x, y, batch_size=8, epochs=2, verbose=0)
weights = [w.tolist() for w in model.get_weights()]
"""
SEED_IN_CELL = """
import keras
keras.utils.set_random_seed(4)
one = keras.random.normal([])
"""
FAIL = """
import numpy as np
np.random.normal()
raise ValueError("on purpose")
"""
LATER = """
after = [random.random(), np.random.normal()]
"""
LATER_ALL = """
after = [random.random(), np.random.normal(), float(tf.random.normal([])), float(keras.random.normal([])),
         keras.layers.Dense(1).add_weight(shape=(1,)).numpy().tolist()]
"""
SHOW = "print(repr([drawn, in_cell, weights, after]))"
CELL = "%%tfos_train -o in_cell,weights\n"
TF_DRAWN = ", float(tf.random.normal([]))"


def _plainly(cells: list[str], folder: Path) -> list[object]:
    """What the cells print in one process."""
    text = "\n".join(c if c != FAIL else "np.random.normal()" for c in cells)
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return list(ast.literal_eval(done.stdout.strip().splitlines()[-1]))


def _in_a_notebook(kernel: Kernel, cells: list[tuple[str, str]]) -> list[object]:
    for magic, source in cells:
        result = kernel.run(magic + source.lstrip())
        assert not result.error or source == FAIL, result.traceback
    return list(ast.literal_eval(kernel.run(SHOW).text.strip()))


def _near(found: object, expected: object) -> bool:
    """Weights that two workers have trained are those of one process to rounding; numbers drawn are the very ones."""
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_near, found, expected))
    return found == pytest.approx(expected, abs=1e-6)


@pytest.fixture
def kernel(new_kernel: Callable[..., Kernel]) -> Kernel:
    made = new_kernel()
    for cell in ("%load_ext tfos_magic", SESSION):
        assert not made.run(cell).error
    return made


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_cells_draw_what_one_process_draws_where_the_kernel_has_tensorflow(kernel: Kernel, tmp_path: Path) -> None:
    train = TRAIN.format(drawn=TF_DRAWN)
    plain = _plainly([SEED_ALL, train, FAIL, LATER_ALL, SHOW], tmp_path)
    cells = [("", SEED_ALL), (CELL, train), ("%%tfos_train\n", FAIL), ("", LATER_ALL)]
    first = _in_a_notebook(kernel, cells)
    assert (first[0], first[1], first[3]) == (plain[0], plain[1], plain[3])
    assert _near(first[2], plain[2])
    assert _in_a_notebook(kernel, cells) == first


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_cells_draw_what_one_process_draws_where_the_kernel_has_no_tensorflow(kernel: Kernel, tmp_path: Path) -> None:
    cells = [
        ("", SEED_PYTHON),
        ("%%tfos_train\n", SEED_IN_CELL),
        ("", SEED_PYTHON),
        (CELL, TRAIN.format(drawn=TF_DRAWN)),
    ]
    cells.append(("", LATER))
    found = _in_a_notebook(kernel, cells)
    plain = _plainly([source for _, source in cells] + [SHOW], tmp_path)
    assert (found[0], found[1], found[3]) == (plain[0], plain[1], plain[3])
    assert kernel.run("import sys; print({'tensorflow', 'keras'} & sys.modules.keys())").text.strip() == "set()"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_that_lost_a_worker_begins_with_the_same_states_and_a_detached_one_moves_the_notebook_on(
    kernel: Kernel,
) -> None:
    mark = f"/dev/shm/tfos-test-{kernel.pid}"
    lost = f"""%%tfos_train -o here
import os, random
here = random.random()
if tfos.rank() == 1 and not os.path.exists({mark!r}):
    open({mark!r}, "w").close()
    os._exit(3)
tfos.barrier()
"""
    detached = "%%tfos_train --detach {name} -o here\nimport random\nhere = random.random()"
    try:
        kernel.run("import random; random.seed(3); first, second = random.random(), random.random(); random.seed(3)")
        result = kernel.run(lost)
        assert not result.error, result.traceback
        assert "restarted from the beginning" in result.text
        assert kernel.run("print(here == first, random.random() == second)").text == "True True\n"
        runs = []
        for _ in range(2):
            kernel.run("random.seed(3)")
            for name in ("one", "two"):
                kernel.run(detached.format(name=name))
                kernel.run(f"{name} = {name}['here']")
            runs.append(kernel.run("print(one, two, one != two)").text)
        assert runs[0] == runs[1]
        assert runs[0].endswith("True\n")
    finally:
        Path(mark).unlink(missing_ok=True)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_seeded_notebook_shuffles_and_drops_the_same_way_twice_and_other_rows_in_the_next_cell(
    kernel: Kernel,
) -> None:
    train = """%%tfos_train --label y -o losses
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dropout(.5), keras.layers.Dense(1)])
model.compile("sgd", "mse")
losses = model.fit(train, epochs=2, verbose=0).history["loss"]
"""
    look = """%%tfos_train --label y -o rows
rows = next(iter(train))[0].numpy().tolist()
"""
    runs = []
    for seed in ("import random; random.seed(3)", "random.seed(3)", ""):
        found = []
        for cell, name in ((seed, ""), (train, "losses"), (look, "rows"), (look, "rows")):
            result = kernel.run(cell)
            assert not result.error, result.traceback
            found += [kernel.run(f"print({name})").text] if name else []
        runs.append(found)
    assert runs[0] == runs[1]
    assert len({runs[0][1], runs[0][2], runs[2][1]}) == 3
    assert runs[2][0] != runs[0][0]
