"""A function with what it closes over as bytes: the same bytes for the same function, so that it is known again."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

import cloudpickle

from tfos_magic.errors import CaptureError

_METADATA, _CONFIG = "metadata.json", "config.json"
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def pack(function: Any, constants: Mapping[str, Any] | None) -> bytes:
    """Pickle a function and its constants. Raises :class:`CaptureError` where that cannot be."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump((function, dict(constants or {})))
    except Exception as error:  # whatever the function closes over may refuse in its own way
        raise CaptureError(
            f"the function cannot be sent to the workers: {type(error).__name__}: {error}. Let it close over arrays, "
            "tf.Variables, Keras models and plain values only."
        ) from None
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Keras models as their ``.keras`` file, without its dates and without what they were compiled with."""

    def reducer_override(self, obj: Any) -> Any:
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(obj, getattr(keras, "Model", ())):
            reduced: Any = obj.__reduce__()
            _, (saved,) = reduced
            return _rebuilt, (type(obj), _timeless(saved.getvalue()), _classes_of(obj))
        return super().reducer_override(obj)


def _classes_of(model: Any) -> dict[str, Any]:
    """The classes of a model and its layers that are not Keras' own, by the names that its file has for them."""
    import keras

    layers = model._flatten_layers(include_self=True, recursive=True)
    own = {type(layer) for layer in layers if type(layer).__module__.partition(".")[0] != "keras"}
    named = {name: kind for kind in own for name in (kind.__name__, keras.saving.get_registered_name(kind))}
    return dict(sorted(named.items()))


def _rebuilt(kind: Any, saved: bytes, classes: dict[str, Any]) -> Any:
    import keras

    with keras.saving.custom_object_scope(classes):
        return kind._unpickle_model(io.BytesIO(saved))


def _timeless(saved: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name, _NO_DATE), _edited(name, old.read(name)))
    return made.getvalue()


def _edited(name: str, content: bytes) -> bytes:
    if name == _METADATA:
        return json.dumps({key: value for key, value in json.loads(content).items() if key != "date_saved"}).encode()
    if name == _CONFIG:
        return json.dumps({**json.loads(content), "compile_config": None}).encode()
    return content
