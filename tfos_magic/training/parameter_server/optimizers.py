"""Taking an optimizer apart and building it again on another process, on some of its variables.

A Keras 3 optimizer keeps its state in lists that run along its variables, and in single variables besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import keras
import numpy as np

from tfos_magic.errors import TrainingError

_NOT_SLOTS = ("_variables", "_trainable_variables")


def check(optimizer: Any) -> None:
    """Refuse what cannot run on parameter servers."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise TrainingError(
            "loss scaling cannot be split between workers and parameter servers. Use the policy mixed_bfloat16, which "
            "needs no scaling, or --strategy sync."
        )
    if getattr(optimizer, "_inner_optimizers", None):  # of a MultiOptimizer, which Keras has from 3.15 on
        raise TrainingError(
            f"{type(optimizer).__name__} picks an optimizer for each variable, which parameter servers cannot do. Use "
            "one optimizer, or --strategy sync."
        )
    if optimizer.global_clipnorm is not None and optimizer.gradient_accumulation_steps:
        raise TrainingError(
            "global_clipnorm with gradient_accumulation_steps needs the gradients of all variables in one place, but "
            "each parameter server holds only some. Omit one of the two, or use --strategy sync."
        )


def describe(optimizer: Any, variables: Sequence[Any]) -> bytes:
    """What :func:`build` needs to make the same optimizer for ``variables``; a class of the cell travels with it."""
    config = optimizer.get_config()
    # Kept as an object, for the config of a schedule of the cell's own could not be read back elsewhere.
    rate = optimizer._learning_rate
    config["learning_rate"] = float(rate.numpy()) if isinstance(rate, keras.Variable) else rate
    config["global_clipnorm"] = None  # clipped where all gradients are
    specs = [
        {
            "name": variable.name,
            "path": variable.path,
            "shape": tuple(variable.shape),
            "dtype": variable.dtype,
            "constraint": getattr(variable, "constraint", None),
            "decays": optimizer.weight_decay is None or optimizer._use_weight_decay(variable),
        }
        for variable in variables
    ]
    return bytes(cloudpickle.dumps((type(optimizer), config, specs)))


def build(description: bytes) -> tuple[Any, list[Any]]:
    """Make the optimizer and its variables, all of them still to be given their values."""
    kind, config, specs = cloudpickle.loads(description)
    variables = [_variable(spec) for spec in specs]
    optimizer = kind.from_config(config)
    spared = [variable for variable, spec in zip(variables, specs, strict=True) if not spec["decays"]]
    if spared:
        optimizer.exclude_from_weight_decay(var_list=spared)
    optimizer.build(variables)
    return optimizer, variables


def state(optimizer: Any, places: Sequence[int]) -> list[Any]:
    """The state of ``optimizer`` that belongs to the variables at ``places``: its single variables, then its slots."""
    slots = _slots(optimizer)
    in_slots = {id(variable) for slot in slots.values() for variable in slot}
    single = [variable for variable in optimizer.variables if id(variable) not in in_slots]
    return single + [slots[name][i] for name in sorted(slots) for i in places if slots[name][i] is not None]


def values(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(variable.value) for variable in variables]


def _slots(optimizer: Any) -> dict[str, list[Any]]:
    count = len(optimizer._trainable_variables)
    return {
        name: list(value)
        for name, value in vars(optimizer).items()
        if name not in _NOT_SLOTS
        and isinstance(value, list)
        and len(value) == count
        and all(item is None or isinstance(item, keras.Variable) for item in value)
    }


def _variable(spec: dict[str, Any]) -> Any:
    variable = keras.Variable(np.zeros(spec["shape"], "float32"), dtype=spec["dtype"], name=spec["name"])
    variable._path = spec["path"]  # some optimizers tell variables apart by it
    variable.constraint = spec["constraint"]
    return variable
