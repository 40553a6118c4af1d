"""Libraries are set in a cell as they are in the notebook, and the other way round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_magic.values import settings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = settings.current()
    yield
    settings.set_up(before)


def test_settings_are_those_that_were_set_and_else_the_libraries_own() -> None:
    settings.set_up({})
    begun = settings.current()
    keras.config.set_dtype_policy("mixed_bfloat16")
    keras.config.set_max_epochs(3)
    keras.config.disable_interactive_logging()
    keras.config.enable_unsafe_deserialization()
    tf.config.run_functions_eagerly(True)
    tf.config.experimental.enable_op_determinism()
    np.seterr(all="raise")
    np.set_printoptions(precision=2, suppress=True)
    known = json.loads(json.dumps(settings.current()))
    settings.set_up({})
    assert settings.current() == begun
    assert keras.layers.Dense(1).compute_dtype == "float32"
    assert str(np.array([1 / 3])) == "[0.33333333]"
    settings.set_up(known)
    assert settings.current() == known
    assert keras.layers.Dense(1).compute_dtype == "bfloat16"
    assert keras.config.max_epochs() == 3
    assert tf.config.functions_run_eagerly()
    assert str(np.array([1 / 3])) == "[0.33]"
    with pytest.raises(FloatingPointError):
        np.log(np.zeros(1))


def test_layers_follow_floatx_until_a_policy_is_set() -> None:
    settings.set_up({"floatx": "float64"})
    assert keras.layers.Dense(1).dtype == "float64"


def test_settings_are_those_of_the_last_cell_until_a_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        for name in ("keras", "keras.src.backend.common.global_state"):
            without.delitem(sys.modules, name)
        assert "floatx" not in settings.current()
        settings.set_up({"floatx": "float64"})
        assert settings.current()["floatx"] == "float64"
        settings.set_up({})
    assert settings.current()["floatx"] == "float32"


SLOW = """
import sys, threading, time
started = threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "keras.src.layers":
            started.set(); time.sleep(1.5)
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: __import__("keras"))
thread.start()
started.wait(30)
from tfos_magic.values import pack, settings
pack({"x": 1})
print(settings.current()["floatx"])
thread.join()
"""


@pytest.mark.soak
def test_a_library_that_another_thread_imports_just_now_is_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "float32\n", done.stderr
