"""A cell goes on with the random states of the process that sends it, and that process with those of the cell."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_magic.values import random_state
from tfos_magic.values.random_state import ended, restored, seed_for, taken

SEEDED = "import random, numpy as np; random.seed(3); np.random.seed(5); np.random.normal(); "


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(random_state, "_waiting", {})
    monkeypatch.setattr(random_state, "_last", (b"", 0))
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def _drawn() -> list[float]:
    return [
        random.random(),
        random.gauss(),
        np.random.normal(),
        float(tf.random.normal([])),
        float(keras.random.normal([])),
        float(keras.layers.Dense(1).add_weight(shape=(1,))[0]),
    ]


def _sent(states: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(states)))


def test_what_was_restored_draws_what_would_have_been_drawn() -> None:
    keras.utils.set_random_seed(11)
    _drawn()
    states = _sent(taken())
    expected = _drawn()
    keras.utils.set_random_seed(12)
    _drawn()
    restored(states)
    assert _drawn() == expected
    assert _sent({**taken(), "tensorflow": {}}) != {**states, "tensorflow": {}}


def test_the_global_generator_goes_on_elsewhere_and_is_forgotten_for_a_cell_without_one() -> None:
    mine = tf.random.Generator.from_seed(3)
    tf.random.set_global_generator(mine)
    mine.normal([2])
    states = _sent(taken())
    expected = mine.normal([2]).numpy().tolist()
    restored(states)
    assert tf.random.get_global_generator() is mine
    assert mine.normal([2]).numpy().tolist() == expected
    random_state.forget_generator()
    assert "generator" not in taken()
    restored(states)
    assert tf.random.get_global_generator().normal([2]).numpy().tolist() == expected
    random_state.forget_generator()


def test_keras_draws_its_seed_from_python_where_it_has_drawn_none() -> None:
    keras.utils.set_random_seed(11)
    states = _sent(taken())
    expected = float(keras.random.normal([]))
    restored(states)
    assert states["keras"] == {"seed": 11, "generator": None}
    assert float(keras.random.normal([])) == expected


def test_operations_with_seeds_of_their_own_begin_anew_only_where_the_cell_has_seeded() -> None:
    tf.random.set_seed(7)
    restored(taken())
    first, second = (float(tf.random.normal([], seed=1)) for _ in range(2))
    restored(taken())
    assert float(tf.random.normal([], seed=1)) not in (first, second)
    tf.random.set_seed(7)
    restored(taken())
    assert float(tf.random.normal([], seed=1)) == first


def test_tensorflow_stays_unseeded_unless_the_cell_seeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tf.random.set_seed(1)
    seeded = taken()
    restored(seeded)
    context = sys.modules["tensorflow.python.eager.context"].context()
    monkeypatch.setattr(context, "_seed", None)
    begun = taken()
    assert "tensorflow" not in begun
    ended(begun, {**seeded, "tensorflow": {**seeded["tensorflow"], "anew": False}})
    assert "tensorflow" not in taken()
    ended(begun, seeded)
    assert taken()["tensorflow"]["seed"] == 1
    ended(begun, {})  # the cell did not begin
    assert taken()["tensorflow"]["seed"] == 1


def test_a_process_without_tensorflow_keeps_its_state_for_the_next_cell_and_loads_nothing() -> None:
    keras.utils.set_random_seed(11)
    _drawn()
    states = taken()
    text = f"""{SEEDED}import json, sys
from tfos_magic.values.random_state import ended, taken
begun = taken()
assert sorted(begun) == ["numpy", "python"], sorted(begun)
ended(begun, json.loads(sys.stdin.read()))
assert not {{"tensorflow", "keras"}} & sys.modules.keys()
print(json.dumps(taken()))
"""
    done = subprocess.run(
        [sys.executable, "-c", text], input=json.dumps(states), capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == _sent(states)


def test_a_seed_follows_from_the_states_and_is_another_one_after_a_cell_that_drew_nothing() -> None:
    def seeds() -> list[int]:
        random.seed(3)
        np.random.seed(5)
        found = []
        for draws in (1, 0, 0):
            begun = taken()
            found.append(seed_for(begun))
            random.random() if draws else None
            ended(begun, taken())
        return found

    first = seeds()
    assert len(set(first)) == 3
    assert all(0 <= seed < 2**31 for seed in first)
    assert seeds() == first


def test_numpys_states_stay_where_it_draws_from_another_generator() -> None:
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        states = taken()
        assert "numpy" not in states
        restored(states)
    finally:
        np.random.set_bit_generator(own)
