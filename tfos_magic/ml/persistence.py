"""Stages as folders: Spark's metadata beside a ``.keras`` file for each model, on whatever file system there is.

The layout is that of Spark's own stages, so that pipelines of both can be read; fsspec writes it, so that no Hadoop
file system is needed.
"""

from __future__ import annotations

import io
import json
import posixpath
import warnings
import zipfile
from types import SimpleNamespace
from typing import Any

from pyspark import __version__ as spark_version
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter

from tfos_magic.errors import CaptureError, UsageError
from tfos_magic.storage import make_folder, open_system
from tfos_magic.values import pack, unpack
from tfos_magic.values.model_archives import archive_of, from_archive

VERSION = 1
_METADATA = "metadata/part-00000"


class StageWriter(MLWriter):
    """Writes an estimator or a model. What neither Spark's JSON nor a ``.keras`` file can hold is pickled, with a
    warning."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def save(self, path: str) -> None:
        """Write to a path or URL. Raises :class:`UsageError` where there is something, unless ``overwrite()`` was
        called, and :class:`CaptureError` for what cannot be written."""
        system, root = open_system(_of_fsspec(path))
        simple, files = _parts_of(self._stage)
        if system.exists(root):
            if not self.shouldOverwrite:
                raise UsageError(f"There is something at {path} already: write().overwrite().save(…) replaces it.")
            system.rm(root, recursive=True)
        about = {"tfosVersion": VERSION, "files": sorted(files), "tfos": self._stage.facts_to_save()}
        spark: Any = SimpleNamespace(version=spark_version)
        text = DefaultParamsWriter._get_metadata_to_save(self._stage, spark, about, simple)
        for name, data in {_METADATA: text.encode(), "metadata/_SUCCESS": b"", **files}.items():
            make_folder(system, posixpath.dirname(f"{root}/{name}"))
            system.pipe_file(f"{root}/{name}", data)


class StageReader(MLReader[Any]):
    """Reads what :class:`StageWriter` has written. What was pickled runs code as it is read: read what you trust."""

    def __init__(self, stage_class: type) -> None:
        super().__init__()
        self._class = stage_class

    def load(self, path: str) -> Any:
        """Raises :class:`UsageError` for what is no stage of this class, and for files of later versions."""
        system, root = open_system(_of_fsspec(path))
        if not system.exists(f"{root}/{_METADATA}"):
            raise UsageError(f"There is no stage at {path}: {_METADATA} is missing.")
        about = json.loads(system.cat_file(f"{root}/{_METADATA}"))
        known = f"{self._class.__module__}.{self._class.__name__}"
        if about["class"] != known:
            raise UsageError(f"At {path} is {about['class']}, and it was to be {known}.")
        if about["tfosVersion"] > VERSION:
            raise UsageError(
                f"The files at {path} have version {about['tfosVersion']}, and this tfos_magic reads {VERSION} at "
                "most: install a later one."
            )
        files = {name: _read(system, root, name, path) for name in about["files"]}
        stage = self._class()
        stage._resetUid(about["uid"])
        DefaultParamsReader.getAndSetParams(stage, about)
        values = unpack(files["pickled"]) if "pickled" in files else {}
        archives = {name.removesuffix(".keras"): data for name, data in files.items() if name.endswith(".keras")}
        stage.take_saved({**archives, **values}, about["tfos"])
        return stage


def _read(system: Any, root: str, name: str, path: str) -> bytes:
    """A file of a stage. Raises :class:`UsageError` where it is gone, or no longer what was written."""
    try:
        data = bytes(system.cat_file(f"{root}/{name}"))
        if name.endswith(".keras") and (bad := zipfile.ZipFile(io.BytesIO(data)).testzip()) is not None:
            raise zipfile.BadZipFile(f"{bad} has changed")
    except (FileNotFoundError, zipfile.BadZipFile) as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
        raise UsageError(f"The stage at {path} cannot be loaded: {name} {why}. Save it again.") from None
    return data


def _parts_of(stage: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The parameters that Spark's JSON can hold, and the files with all else."""
    values = {**{param.name: value for param, value in stage._paramMap.items()}, **stage.objects_to_save()}
    simple = {name: value for name, value in values.items() if _is_simple(value)}
    files: dict[str, bytes] = {}
    others = {}
    for name, value in values.items():
        if name in simple:
            continue
        data = value if isinstance(value, bytes) else _archive(value)
        if data:
            files[f"{name}.keras"] = data
        else:
            others[name] = value
    if others:
        files["pickled"] = _pickled(others)
    return simple, files


def _archive(value: Any) -> bytes:
    """A Keras model as a ``.keras`` file; empty for what is none, or could not be read where its classes are not."""
    if not (hasattr(value, "get_config") and hasattr(value, "fit")):
        return b""
    try:
        data = archive_of(value)
        from_archive(data)
    except Exception:  # its get_config, and its classes, may raise anything
        return b""
    import keras

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        config = archive.read("config.json").decode()
        registered = keras.saving.get_custom_objects()
        own = [name for name, value in registered.items() if not value.__module__.startswith("keras.")]
        if any(f'"{name}"' in config for name in own):
            return b""  # a process that loads it, and Python workers, have not what this one has registered
        if '"__lambda__"' in config:
            warnings.warn("The Keras model has a Lambda layer, whose code runs when it is used.", stacklevel=5)
    return data


def _pickled(values: dict[str, Any]) -> bytes:
    names = ", ".join(values)
    try:
        data = pack(values)
    except Exception as error:  # any object of the user's may refuse in its own way
        raise CaptureError(f"{names} cannot be saved: {type(error).__name__}: {error}") from None
    warnings.warn(
        f"Saved as a pickle, which runs code when it is read, and is read by the same versions of Python and its "
        f"packages alone: {names.replace('held', 'the Keras model')}.",
        stacklevel=4,
    )
    return data


def _is_simple(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _of_fsspec(path: str) -> str:
    """A path as Spark may have it: ``file:/tmp/stage`` is ``file:///tmp/stage``."""
    return path.replace("file:/", "file:///", 1) if path.startswith("file:/") and "://" not in path else path
