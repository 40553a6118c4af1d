"""What libraries are set to for a whole process: Keras, TensorFlow and NumPy.

A cell begins with the settings of the notebook, and the notebook goes on with those that the cell has left. Nothing
here imports a library: one that is not loaded has no settings yet.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Setting:
    """A setting that is read and written with ``module``, once that is loaded; ``default`` is the library's own."""

    module: str
    default: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]


def _of_keras(name: str, default: Any) -> _Setting:
    return _Setting(
        "keras",
        default,
        lambda keras: getattr(keras.config, name)(),
        lambda keras, value: getattr(keras.config, f"set_{name}")(value),
    )


def _switch_of_keras(name: str) -> _Setting:
    return _Setting(
        "keras",
        True,
        lambda keras: getattr(keras.config, f"is_{name}_enabled")(),
        lambda keras, on: getattr(keras.config, f"{'enable' if on else 'disable'}_{name}")(),
    )


def _policy(state: Any) -> Any:
    """The name of the dtype policy that was set; asking ``keras.config`` for it would set it."""
    policy = state.get_global_attribute("dtype_policy")
    return None if policy is None else policy.name


def _set_policy(state: Any, name: str | None) -> None:
    """Where none is set, layers follow ``floatx``."""
    state.set_global_attribute("dtype_policy", None)
    if name is not None:
        sys.modules["keras"].config.set_dtype_policy(name)


_STATE = "keras.src.backend.common.global_state"
_PRINTING: dict[str, Any] = {"precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 75, "suppress": False}
_PRINTING |= {"nanstr": "nan", "infstr": "inf", "sign": "-", "floatmode": "maxprec"}
_SETTINGS = {
    "floatx": _of_keras("floatx", "float32"),
    "epsilon": _of_keras("epsilon", 1e-7),
    "image_data_format": _of_keras("image_data_format", "channels_last"),
    "max_epochs": _of_keras("max_epochs", None),
    "max_steps_per_epoch": _of_keras("max_steps_per_epoch", None),
    "traceback_filtering": _switch_of_keras("traceback_filtering"),
    "interactive_logging": _switch_of_keras("interactive_logging"),
    "dtype_policy": _Setting(_STATE, None, _policy, _set_policy),
    "safe_mode_saving": _Setting(
        _STATE,
        None,
        lambda state: state.get_global_attribute("safe_mode_saving"),
        lambda state, on: state.set_global_attribute("safe_mode_saving", on),
    ),
    "run_functions_eagerly": _Setting(
        "tensorflow",
        False,
        lambda tf: tf.config.functions_run_eagerly(),
        lambda tf, on: tf.config.run_functions_eagerly(on),
    ),
    "op_determinism": _Setting(
        "tensorflow.python.framework.config",
        False,
        lambda config: config.is_op_determinism_enabled(),
        lambda config, on: config.enable_op_determinism() if on else config.disable_op_determinism(),
    ),
    "numpy_errors": _Setting(
        "numpy",
        {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
        lambda np: dict(np.geterr()),
        lambda np, known: np.seterr(**known),
    ),
    "numpy_printing": _Setting(
        "numpy",
        _PRINTING,
        lambda np: {name: value for name, value in np.get_printoptions().items() if name in _PRINTING},
        lambda np, known: np.set_printoptions(**known),
    ),
}
_waiting: dict[str, Any] = {}


def await_imports() -> None:
    """Wait for libraries that another thread is importing just now, as it does for the first values of a run."""
    for name in ("tensorflow", "keras"):
        module = sys.modules.get(name)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            importlib.import_module(name)


def current() -> dict[str, Any]:
    """The settings by name, as JSON has them. Of libraries that are not loaded, those that :func:`set_up` was given."""
    found = dict(_waiting)
    for name, setting in _SETTINGS.items():
        if module := sys.modules.get(setting.module):
            found[name] = setting.read(module)
    return found


def set_up(known: Mapping[str, Any]) -> None:
    """Let libraries have these settings, and for others their own: not what was set before."""
    _waiting.clear()
    for name, setting in _SETTINGS.items():
        value = known.get(name, setting.default)
        if module := sys.modules.get(setting.module):
            if setting.read(module) != value:
                setting.write(module, value)
        elif name in known:
            _waiting[name] = value
