"""The names that a cell was asked for, as values in the notebook, and how those who wait get them."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from threading import Lock
from typing import Any

from tfos_magic.cluster.runs.request import RETURNED, RunRequest
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.startup import tell_while
from tfos_magic.errors import CaptureError, RunInterrupted, RunStopped, UsageError, WorkerError
from tfos_magic.frames.inference.trained import note_features
from tfos_magic.quiet import quiet_tensorflow
from tfos_magic.transport.messages import CellLeft, OutputPart, RunFinished
from tfos_magic.values.model_archives import ModelWeights
from tfos_magic.values.unpickler import Unpickler
from tfos_magic.worker.placeholders import TrainingHistory

_READING = Lock()
"""Held while values are read: several threads that import what these name could find it half-loaded."""


def kernels_keras() -> str:
    """The version of Keras in this process, which need not be loaded; empty where there is no TensorFlow for it."""
    try:
        has_tensorflow = importlib.util.find_spec("tensorflow") is not None
        return metadata.version("keras") if has_tensorflow else ""
    except (ValueError, metadata.PackageNotFoundError):
        return ""


class RunResults:
    """What the ranks of a run send back: pieces of buffers, and in the end values; by name and rank where the request
    has each rank run alone."""

    def __init__(self, state: RunState, request: RunRequest) -> None:
        self._state, self._alone, self._asked = state, request.alone, bool({*request.outputs} - {RETURNED})
        self._main = None if self._alone else request.main
        self._features = [use.features for use in request.frames.values()]
        self._buffers: dict[tuple[int, int], bytearray] = {}
        self._ends: Mapping[int, RunFinished] = {}

    def take(self, part: OutputPart) -> None:
        """Put a piece in its place. A rank's pieces come in order, from the first again where it begins anew."""
        if part.offset == 0:
            self._buffers[part.rank, part.buffer] = bytearray(part.size)
        self._buffers[part.rank, part.buffer][part.offset : part.offset + len(part.payload)] = part.payload
        if part.rank == 0:
            begins = part.buffer == part.offset == 0
            self._state.returned = (0 if begins else self._state.returned) + len(part.payload)
            self._state.returning = part.total

    def note(self, ends: Mapping[int, RunFinished]) -> None:
        """Know how the ranks ended."""
        self._ends = ends

    @property
    def left(self) -> CellLeft:
        """What the cell has left on rank 0, once what it is given back to is whole."""
        _await_imports()
        return self._ends[0].left if 0 in self._ends else CellLeft()

    def values(self) -> dict[str, Any]:
        """The names that came. Raises :class:`CaptureError`, with those that did, where some did not."""
        values, missing = self._collect()
        if missing:
            raise CaptureError("Some of the names asked back with -o did not come: " + "; ".join(missing) + ".", values)
        return values

    def rescue(self) -> tuple[dict[str, Any], str]:
        """After a run that failed or was stopped: the names that came all the same, and a sentence on them."""
        values, missing = self._collect()
        if not values:
            return {}, self._why_none(missing)
        names = ", ".join(values)
        without = f" Not there: {'; '.join(missing)}." if missing else ""
        return values, f"Brought back with -o as they were when it ended: {names}.{without}"

    def _why_none(self, missing: list[str]) -> str:
        """A sentence where no name came; empty where nothing was to come, or where no cell has begun."""
        begun = self._state.restarts or any(worker.state != "waiting" for worker in self._state.workers)
        if self._alone or not begun:
            return ""
        if 0 not in self._ends:
            nothing = "Nothing came back with -o: the" if self._asked else "The"
            return (
                f"{nothing} first worker was ended before it could send what the cell left. The notebook's random "
                "numbers and settings are as they were before the cell."
            )
        if not self._asked:
            return ""
        apart = "" if self._ends[0].clean else "the workers lost each other, so what each has may be of another step"
        why = apart or "; ".join(missing)  # neither, where the names were not wanted
        return f"Nothing came back with -o: {why}." if why else ""

    def rescue_with(self, error: BaseException) -> None:
        """Let what a cell raised take along the names that came all the same."""
        if isinstance(error, WorkerError):
            error.values, error.brought = self.rescue()

    def _collect(self) -> tuple[dict[str, Any], list[str]]:
        ends = self._ends if self._alone else {rank: end for rank, end in self._ends.items() if rank == 0}
        values: dict[str, Any] = {}
        missing: list[str] = []
        for rank, end in ends.items():
            for name, value in self._of_rank(end, missing).items():
                if self._alone:
                    values.setdefault(name, {})[rank] = value
                else:
                    values[name] = value
        self._buffers.clear()
        return values, missing

    def _of_rank(self, end: RunFinished, missing: list[str]) -> dict[str, Any]:
        missing += end.missing
        values = self._read(end.rank, end.parcels, missing)
        for name, value in values.items():
            if isinstance(value, ModelWeights):
                self._note_weights(name, value)
            elif isinstance(value, TrainingHistory):  # read before what else came has loaded Keras
                values[name] = value.as_loaded()
        if self._features:
            note_features(values, self._features)
        return values

    def _read(self, rank: int, parcels: Iterable[dict[str, Any]], missing: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for parcel in parcels:
            try:
                data, *buffers = [self._buffers[rank, number] for number in parcel["buffers"]]
                with _READING:
                    _await_imports()
                    _load_keras(data)
                    with quiet_tensorflow():
                        values.update(Unpickler(io.BytesIO(data), buffers, keeps=True, main=self._main).load_all())
            except Exception as error:  # what made the values may not be there to read them
                apart = parcel.get("otherwise", [])
                values.update(self._read(rank, apart, missing))
                names = set(parcel["names"]).difference(*(each["names"] for each in apart))
                missing += [f"{', '.join(sorted(names))}: {_reason(error)}"] if names else []
        return values

    def _note_weights(self, name: str, weights: ModelWeights) -> None:
        """Put the model's archive into a file that only this user can read."""
        text = f"The notebook's Python has no TensorFlow: {name} came back as its weights, a dict of arrays"
        if archive := weights.archive:
            path = Path(tempfile.mkdtemp(prefix="tfos-model-")) / f"{name}.keras"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(archive)
            weights.archive, weights.file = b"", str(path)
            text += f", and as the file {path} ({name}.file)"
        self._state.notices.append(f"{text}.")


def _await_imports() -> None:
    """Wait for another thread that imports these libraries: half of one is of no use."""
    for name in ("tensorflow", "keras"):
        if sys.modules.get(name) is not None:
            import_module(name)


def _load_keras(data: bytearray) -> None:
    """Load Keras where pickled values name it, which takes seconds: with that told. Interrupts are for the run, which
    is over: half-loaded, Keras would be of no use to this process any more."""
    if b"keras" not in data or not kernels_keras():
        return
    loaded: list[Any] = []
    while not loaded:
        with suppress(KeyboardInterrupt), quiet_tensorflow():
            load = partial(import_module, "keras")
            loaded.append(tell_while("TensorFlow to load in the notebook", math.inf, load))


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"the notebook's Python lacks what it is made of ({error}); install that in the notebook's environment"
    return f"{type(error).__name__}: {error}"


class RunResult(Mapping[str, Any]):
    """The names that a run brought back, also where it failed or was stopped; looking into it waits for the end."""

    def __init__(self, name: str, end: Future[dict[str, Any]]) -> None:
        self._name, self._end = name, end

    def __getitem__(self, name: str) -> Any:
        values = self._values()
        if name in values:
            return values[name]
        there = ", ".join(self._end.result()) or "nothing"  # raises what ended the run, if anything did
        raise UsageError(f"{name!r} was not requested: add it to -o, or to outputs. There is {there}.")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        if not self._end.done():
            return f"<{self._name}: under way>"
        names = [*self._values()]
        of_function = "what its function returned is in run.returned" if names == [RETURNED] else ""
        return f"<{self._name}: {of_function or ', '.join(names) or 'no names came back'}>"

    def _values(self) -> dict[str, Any]:
        try:
            return self._end.result()
        except BaseException as error:
            if not self._end.done():  # the wait was interrupted
                raise
            return dict(getattr(error, "values", {}))


def quietly(end: Future[dict[str, Any]]) -> Future[dict[str, Any]]:
    """The same end with an error of its own for a run that was stopped."""
    made: Future[dict[str, Any]] = Future()

    def pass_on(ended: Future[dict[str, Any]]) -> None:
        error = ended.exception()
        if error is None:
            made.set_result(ended.result())
        else:
            made.set_exception(RunStopped(str(error)) if isinstance(error, RunInterrupted) else error)

    end.add_done_callback(pass_on)
    return made
