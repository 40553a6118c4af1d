"""A function with what it closes over as bytes: the same bytes for the same function, so that it is known again."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from tfos_magic.errors import CaptureError
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.unpickler import Unpickler

# What compile gives to a model, and by it to TensorFlow's list of what a checkpoint holds; and what was there before.
_OF_COMPILING = (
    "optimizer",
    "_compile_config",
    "_compiled_trainable_state",
    "_self_unconditional_checkpoint_dependencies",
    "_self_unconditional_dependency_names",
)
_NOT_COMPILED = {"compiled": False, **dict.fromkeys(("loss", "_compile_loss", "_compile_metrics", "_loss_tracker"))}


def pack(function: Any, constants: Mapping[str, Any] | None) -> bytes:
    """Pickle a function and its constants. Raises :class:`CaptureError` where that cannot be."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump_all((function, dict(constants or {})))
    except Exception as error:  # whatever the function closes over may refuse in its own way
        raise CaptureError(
            f"the function cannot be sent to the workers: {type(error).__name__}: {error}. Let it close over arrays, "
            "tf.Variables, Keras models and plain values only."
        ) from None
    return buffer.getvalue()


def unpack(payload: bytes) -> tuple[Any, dict[str, Any]]:
    """The function and the constants of :func:`pack`."""
    from pyspark import TaskContext

    # Beside the notebook its classes are there already; a Spark worker may have got an older one of theirs.
    function, constants = Unpickler(io.BytesIO(payload), keeps=TaskContext.get() is None).load_all()
    return function, constants


class _Pickler(Pickler):
    """Keras models without what they were compiled with; what in their attributes cannot be sent is left out."""

    def state_of(self, obj: Any) -> Any:
        self._lenient = True
        state = super().state_of(obj)
        if not (isinstance(state, dict) and state.get("compiled")):
            return state
        return {**{name: value for name, value in state.items() if name not in _OF_COMPILING}, **_NOT_COMPILED}
