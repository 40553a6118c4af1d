"""Models of Keras and SavedModels seen alike: their inputs by name, and a call with one tensor for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.frames.inference.model_files import local_copy
from tfos_magic.values.model_archives import from_archive


@dataclass(frozen=True)
class Input:
    """One input. ``shape`` has the rows first; ``native`` says that integers go in as they are, and any lengths."""

    dtype: str
    shape: tuple[int | None, ...]
    native: bool = False

    def dtype_for(self, given: str) -> str:
        """The dtype to which a column of the dtype ``given`` is cast."""
        return given if self.native and not given.startswith(("float", "bfloat")) else self.dtype


@dataclass(frozen=True)
class Loaded:
    """A model. ``call`` takes a tensor for each of ``inputs``, whose order is the author's own where ``ordered``."""

    call: Callable[[list[Any]], Any]
    inputs: dict[str, Input]
    ordered: bool


def loaded(model: Any, signature: str) -> Loaded:
    """A Keras model, one as the bytes of a ``.keras`` file, or the path or URL of a ``.keras`` or ``.h5`` file or of a
    SavedModel, ready to be called.

    Raises :class:`UsageError` for what is no built model, and for a signature that a SavedModel lacks.
    """
    if isinstance(model, bytes):
        return _of_keras(from_archive(model))
    if not isinstance(model, (str, Path)):
        return _of_keras(model)
    with local_copy(str(model)) as path:
        if Path(path).suffix in (".keras", ".h5"):
            return _of_keras(_of_file(path, str(model)))
        return _of_saved_model(path, signature)


def _of_file(path: str, given: str) -> Any:
    import keras

    try:
        return keras.models.load_model(path, compile=False)
    except (TypeError, ValueError) as error:  # a class that is not in the file, or a lambda, which Keras does not trust
        raise UsageError(
            f"the model at {given} cannot be loaded on the workers: load it in the notebook, as in keras.models."
            f"load_model({given!r}, custom_objects=…, safe_mode=…), and give predict the model. Keras says: "
            f"{' '.join(str(error).split())}"
        ) from None


def _of_keras(model: Any) -> Loaded:
    given = _inputs_of(model)
    if isinstance(given, Mapping):
        names = list(given)
        return Loaded(lambda values: model(dict(zip(names, values, strict=True)), training=False), dict(given), False)
    several = isinstance(given, list)
    inputs = dict(given) if several else {given[0]: given[1]}
    return Loaded(lambda values: model(values if several else values[0], training=False), inputs, True)


def _inputs_of(model: Any) -> Any:
    """A dict of inputs where the model is called with a dict, pairs in a list for a list, and a pair for one tensor."""
    if not callable(model):
        raise _not_built()
    if not getattr(model, "inputs", None):
        return _of_shapes(model)
    struct = getattr(model, "_inputs_struct", model.inputs[0])  # a Sequential has none, and one input
    if isinstance(struct, Mapping):
        return {name: _of_tensor(tensor) for name, tensor in struct.items()}
    if isinstance(struct, (list, tuple)):
        return [(tensor.name, _of_tensor(tensor)) for tensor in struct]
    return struct.name, _of_tensor(struct)


def _of_tensor(tensor: Any) -> Input:
    if not hasattr(tensor, "shape"):
        raise UsageError("the model's inputs are nested: give it a list or a dict of tensors")
    return Input(tensor.dtype, tuple(tensor.shape))


def _of_shapes(model: Any) -> Any:
    """The inputs of a subclass, which knows the shapes that it was built with; floats are cast as Keras would."""
    config = model.get_build_config() if getattr(model, "built", False) else None
    shapes = (config or {}).get("input_shape")
    if not shapes:
        raise _not_built()

    def one(shape: Sequence[int | None]) -> Input:
        return Input(model.input_dtype, (None, *shape[1:]), native=True)

    if isinstance(shapes, Mapping):
        return {name: one(shape) for name, shape in shapes.items()}
    if isinstance(shapes[0], (list, tuple)):
        return [(f"input {i}", one(shape)) for i, shape in enumerate(shapes)]
    return "input", one(shapes)


def _not_built() -> UsageError:
    return UsageError("a built Keras model is needed, or the path of one: give the model an Input, or fit it first")


def _of_saved_model(path: str, signature: str) -> Loaded:
    import tensorflow as tf

    model = tf.saved_model.load(path)
    if signature not in model.signatures:
        raise UsageError(
            f"the SavedModel has no signature {signature!r}, it has {', '.join(model.signatures) or 'none'}"
        )
    function = model.signatures[signature]
    # Their order is lost in the file: only names tell them apart.
    named = function.structured_input_signature[1]

    def call(values: list[Any]) -> Any:
        assert model is not None, "the variables live as long as the model does"
        return function(**dict(zip(named, values, strict=True)))

    inputs = {name: Input(spec.dtype.name, tuple(spec.shape)) for name, spec in named.items()}
    return Loaded(call, inputs, ordered=len(inputs) == 1)
