"""Models that cannot go by value: as Keras's own archive with the classes that it needs, or as their weights."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from tfos_magic.errors import CaptureError
from tfos_magic.values.objects import registered_name
from tfos_magic.values.tensors import array_of


class ModelWeights(dict[str, npt.NDArray[Any]]):
    """A model where there is no TensorFlow: its weights by the variables' paths, and ``file``, a ``.keras`` file."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], archive: Any = b"") -> None:
        super().__init__(weights)
        self.archive = archive
        self.file = ""

    def __reduce__(self) -> Any:
        return ModelWeights, (dict(self), pickle.PickleBuffer(self.archive))

    def read_archive(self) -> bytes:
        """The ``.keras`` file. Raises :class:`CaptureError` where Keras could not save the model."""
        if not (self.archive or self.file):
            raise CaptureError("Keras cannot save the model, and without TensorFlow here nothing else can hold it.")
        return Path(self.file).read_bytes() if self.file else bytes(self.archive)


class _Rebuilt:
    """Becomes a model when it is unpickled."""

    def __init__(self, archive: bytes, definitions: Mapping[str, Any]) -> None:
        self._archive, self._definitions = archive, dict(definitions)

    def __reduce__(self) -> Any:
        return _load, (pickle.PickleBuffer(self._archive), self._definitions)


def archived(model: Any) -> ModelWeights:
    """A model for those who have no TensorFlow; without an archive where Keras cannot save it."""
    try:
        return ModelWeights(weights_of(model), archive_of(model))
    except Exception:  # its get_config may raise anything
        return ModelWeights(weights_of(model))


def rebuilt(model: Any, namespace: Mapping[str, Any]) -> Any:
    """What becomes the model, its weights and its optimizer's state by the classes of ``namespace``.

    Raises what Keras raises where it cannot save the model.
    """
    definitions = {
        registered_name(value) or value.__name__: value
        for value in namespace.values()
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__"
    }
    archive = archive_of(model)
    _load(archive, definitions)  # what cannot be loaded here would not be there either
    return _Rebuilt(archive, definitions)


def weights_of(model: Any) -> dict[str, npt.NDArray[Any]]:
    """The values of a Keras object's variables by their paths; a path that comes again gets a number."""
    weights: dict[str, npt.NDArray[Any]] = {}
    for variable in getattr(model, "weights", None) or model.variables:
        path, again = variable.path, 1
        while path in weights:
            again += 1
            path = f"{variable.path}:{again}"
        weights[path] = np.array(array_of(variable))
    return weights


def archive_of(model: Any) -> bytes:
    """A model as a ``.keras`` file. Raises what Keras raises where it cannot save it."""
    from keras.src.saving import saving_lib

    buffer = io.BytesIO()
    saving_lib._save_model_to_fileobj(model, buffer, "h5")
    return buffer.getvalue()


def from_archive(archive: bytes) -> Any:
    """The model in a ``.keras`` file, which may hold functions."""
    return _load(archive, {})


def _load(archive: Any, definitions: Mapping[str, Any]) -> Any:
    import keras
    from keras.src.saving import saving_lib

    with keras.saving.custom_object_scope(dict(definitions)):
        return saving_lib._load_model_from_fileobj(
            io.BytesIO(bytes(archive)), custom_objects=None, compile=True, safe_mode=False
        )


def reduce_keras_2(obj: Any) -> Any:
    """How a model of ``tf_keras`` is made anew: from its archive, with the user's classes and functions that it names;
    ``NotImplemented`` for others."""
    library = sys.modules.get("tf_keras")
    if library is None or not isinstance(obj, library.Model):
        return NotImplemented
    compiled = [getattr(obj, name, None) for name in ("loss", "optimizer")]
    compiled.append(getattr(getattr(obj, "compiled_metrics", None), "_user_metrics", None))
    parts = [obj, *obj._flatten_layers(), *_leaves(compiled)]
    parts += [value for part in parts if hasattr(part, "__dict__") for value in vars(part).values()]
    kinds = [part if isinstance(part, (FunctionType, type)) else type(part) for part in parts if part is not None]
    return _keras_2, (obj.__reduce__(), {kind.__name__: kind for kind in kinds if kind.__module__ == "__main__"})


def _keras_2(made_of: tuple[Callable[..., Any], tuple[Any, ...]], own: Mapping[str, Any]) -> Any:
    import tf_keras

    make, args = made_of
    with tf_keras.saving.custom_object_scope(own):
        return make(*args)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, (list, tuple)) else [value]
