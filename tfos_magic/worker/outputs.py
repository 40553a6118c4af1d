"""The names that a cell was asked for: packed for the notebook, each in the best form that it can take, and sent."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tfos_magic.errors import ClusterError
from tfos_magic.transport.messages import Message, Notice, OutputPart, Questions, RunCell, RunFinished
from tfos_magic.values.model_archives import archived, rebuilt, weights_of
from tfos_magic.values.objects import is_model, is_saveable, version
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.tensors import is_of_a_graph, kind_of
from tfos_magic.worker.cell import describe_error, wants_outputs
from tfos_magic.worker.placeholders import TrainingHistory

PART_BYTES = 8 << 20
PARTS_AHEAD = 4
PATIENCE = 60.0
APART_BYTES = 4 << 20
"""Names of a group whose pickles, beside the memory of arrays, are no larger are sent apart, too."""


@dataclass
class Packed:
    """What goes to the notebook: ``parcels`` as in :class:`~tfos_magic.transport.messages.RunFinished`, the memory of
    their buffers, for names that cannot come why, and what the user should know of those that come in another form."""

    parcels: list[dict[str, Any]] = field(default_factory=list)
    buffers: list[memoryview] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Parcel:
    """Names that are pickled together; ``pickler`` knows what else was."""

    values: dict[str, Any]
    data: memoryview
    buffers: list[memoryview]
    pickler: Pickler
    lenient: bool


def bring_back(
    end: RunFinished,
    cell: RunCell,
    namespace: Mapping[str, Any],
    set_anew: Set[str],
    send: Callable[[Message], None],
    taken: SimpleQueue[None],
    questions: Questions,
) -> RunFinished:
    """Send the names that the cell was asked for, as they are, however it ended; gives the end with them. Where
    the notebook is asked first, by way of ``questions``, and does not want them, none is sent."""
    send(OutputPart(end.run_id, end.rank, 0, 0, 0, 0))  # so that nobody who waits for the end loses patience meanwhile
    try:
        if not wants_outputs(questions, cell, namespace):
            return end
        packed = pack_outputs(cell.outputs, namespace, cell.keras, set_anew, cell.feeds.keys())
        for text in packed.notices:
            send(Notice(end.run_id, end.rank, text))
        send_parts(end.run_id, end.rank, packed.buffers, send, taken)
        _keep_folders(namespace)
    except Exception as error:
        return end if end.error else replace(end, status="error", error=describe_error(error, cell))
    return replace(end, parcels=packed.parcels, missing=packed.missing)


def pack_outputs(
    names: Sequence[str],
    namespace: Mapping[str, Any],
    keras: str,
    set_anew: Set[str] = frozenset(),
    feeds: Set[str] = frozenset(),
) -> Packed:
    """Pack ``names`` for a notebook that has this version of Keras, or no TensorFlow where it is empty.

    Names that share something that can change are packed together, so that they share it there. A model of which a
    part cannot be pickled comes without that part, else rebuilt from its class with its weights, else as its weights.
    What the cell has ``set_anew`` and a function names comes with the function; of ``feeds`` the notebook has the
    DataFrames. A model of the notebook comes whole where a part of it does: else the notebook had a mixture of two.
    """
    packing = _Packing(namespace, keras, set_anew, feeds)
    alone = [parcel for name in dict.fromkeys(names) if (parcel := packing.alone(name)) is not None]
    alone += packing.wholes(alone, namespace.keys() - set_anew - {*names})
    for group in _groups(alone):
        packing.add(group)
    return packing.packed


class _Packing:
    def __init__(self, namespace: Mapping[str, Any], keras: str, set_anew: Set[str], feeds: Set[str]) -> None:
        self.packed = Packed()
        self._namespace, self._keras, self._set_anew, self._feeds = namespace, keras, set_anew, feeds
        self._arrays: dict[int, Any] = {}
        self._places: dict[tuple[int, int], int] = {}

    def alone(self, name: str) -> _Parcel | None:
        """Pack one name; None where that cannot be, with the reason in ``packed.missing``."""
        if name not in self._namespace:
            self.packed.missing.append(f"{name}: the cell did not define it")
            return None
        value, reason = _portable(self._namespace[name]), ""
        as_object = (self._whole, self._without_parts, self._rebuilt, self._weights)
        for form in as_object if self._keras or not is_saveable(value) else (self._archived,):
            try:
                return form(name, value, reason)
            except Exception as error:  # any object of the user's may refuse in its own way
                reason = reason or f"{type(error).__name__}: {error}"
        self.packed.missing.append(f"{name}: {reason}")
        return None

    def wholes(self, parcels: Sequence[_Parcel], names: Set[str]) -> list[_Parcel]:
        """The models among ``names`` of which ``parcels`` have a part, packed."""
        models = {name: self._namespace[name] for name in sorted(names) if is_model(self._namespace[name])}
        parts = {name: {id(part) for part in (*m._flatten_layers(), *m.weights)} for name, m in models.items()}
        roots = set[int]().union(*parts.values())
        held = set[int]().union(*(parcel.pickler.shares(roots) for parcel in parcels))
        wanted = [name for name in models if parts[name] & held]
        if wanted:
            self.packed.notices.append(
                f"{', '.join(wanted)} came back too, because what -o names is part of it, or contains it: as in one "
                "process, the notebook has it as the cell trained it."
            )
        return [parcel for name in wanted if (parcel := self.alone(name)) is not None]

    def add(self, group: Sequence[_Parcel]) -> None:
        """Put names that belong together into one parcel of what is sent, and each alone should that not be read."""
        if len(group) == 1:
            self.packed.parcels.append(self._sent(group[0]))
            return
        values = {name: value for parcel in group for name, value in parcel.values.items()}
        whole = self._sent(self._write(values, lenient=any(parcel.lenient for parcel in group)))
        whole["otherwise"] = [self._sent(parcel) for parcel in group if parcel.data.nbytes <= APART_BYTES]
        self.packed.parcels.append(whole)

    def _sent(self, parcel: _Parcel) -> dict[str, Any]:
        numbers = [self._place(memory) for memory in (parcel.data, *parcel.buffers)]
        return {"names": list(parcel.values), "buffers": numbers}

    def _place(self, memory: memoryview) -> int:
        """The number of a buffer; the same memory is sent once."""
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0] if memory.nbytes else id(memory)
        place = self._places.setdefault((address, memory.nbytes), len(self.packed.buffers))
        if place == len(self.packed.buffers):
            self.packed.buffers.append(memory)
        return place

    def _write(self, values: dict[str, Any], *, lenient: bool = False) -> _Parcel:
        file, buffers = io.BytesIO(), list[memoryview]()
        plain = not self._keras
        pickler = Pickler(
            file,
            lambda buffer: buffers.append(buffer.raw()),
            lenient=lenient,
            plain=plain,
            arrays=self._arrays,
            set_anew=self._set_anew,
            feeds=self._feeds,
        )
        pickler.dump_all(values)
        return _Parcel(values, file.getbuffer(), buffers, pickler, lenient)

    def _whole(self, name: str, value: Any, reason: str) -> _Parcel:
        return self._checked(name, value, self._write({name: value}))

    def _without_parts(self, name: str, value: Any, reason: str) -> _Parcel:
        return self._checked(name, value, self._write({name: value}, lenient=True))

    def _checked(self, name: str, value: Any, parcel: _Parcel) -> _Parcel:
        """The parcel, unless the value itself was left out or is of another Keras than the notebook's."""
        if parcel.pickler.holds_keras and self._keras != version():
            raise TypeError(f"it was made by Keras {version()}, and the notebook has Keras {self._keras}")
        unsent = parcel.pickler.unsent
        if any(part is value for part in unsent):
            raise TypeError(f"a {kind_of(value)} cannot be sent")
        if kinds := ", ".join(dict.fromkeys(kind_of(part) for part in unsent if not is_of_a_graph(part))):
            self.packed.notices.append(f"{name} came back without what cannot be sent ({kinds}): using that says so.")
        return parcel

    def _archived(self, name: str, value: Any, reason: str) -> _Parcel:
        return self._write({name: archived(value)})

    def _rebuilt(self, name: str, value: Any, reason: str) -> _Parcel:
        parcel = self._write({name: rebuilt(value, self._namespace)}, lenient=True)
        self.packed.notices.append(
            f"{name} was rebuilt from its class and weights, because it cannot be sent as it is ({reason}): what was "
            "set after it was created is missing."
        )
        return parcel

    def _weights(self, name: str, value: Any, reason: str) -> _Parcel:
        parcel = self._write({name: weights_of(value)})
        self.packed.notices.append(f"{name} came back as its weights, a dict of arrays: it cannot be sent ({reason}).")
        return parcel


def _keep_folders(namespace: Mapping[str, Any]) -> None:
    """Let temporary directories of the cell be there until the kernel ends, as their names are."""
    for value in namespace.values():
        if isinstance(value, tempfile.TemporaryDirectory):
            value._finalizer.detach()  # type: ignore[attr-defined]


def _groups(parcels: Sequence[_Parcel]) -> list[list[_Parcel]]:
    """The parcels by what they share, directly or through others."""
    roots = {id(value) for parcel in parcels for value in parcel.values.values()}
    groups: list[tuple[list[_Parcel], set[int]]] = []
    for parcel in parcels:
        held = parcel.pickler.shares(roots)
        sharing = [group for group in groups if group[1] & held]
        groups = [group for group in groups if not group[1] & held]
        together = [other for others, _ in sharing for other in others]
        groups.append(([*together, parcel], held.union(*(ids for _, ids in sharing))))
    return [group for group, _ in groups]


def _portable(value: Any) -> Any:
    """What the notebook should get for ``value``: a training history without its model."""
    kind = type(value)
    if kind.__name__ == "History" and kind.__module__.startswith(("keras", "tf_keras")):
        library = kind.__module__.partition(".")[0]
        return TrainingHistory(dict(value.history), list(value.epoch), dict(value.params or {}), library)
    return value


def send_parts(
    run_id: str, rank: int, buffers: Sequence[memoryview], send: Callable[[Message], None], taken: SimpleQueue[None]
) -> None:
    """Send the buffers in pieces, a few ahead of what was ``taken``, so that no process between holds all of them.

    Raises :class:`ClusterError` when the notebook takes nothing more.
    """
    for number, part in enumerate(_parts(run_id, rank, buffers)):
        try:
            if number >= PARTS_AHEAD:
                taken.get(timeout=PATIENCE)
        except Empty:
            raise ClusterError(f"the notebook accepted none of the cell's results for {PATIENCE:.0f} s.") from None
        send(part)


def _parts(run_id: str, rank: int, buffers: Sequence[memoryview]) -> Iterator[OutputPart]:
    total = sum(memory.nbytes for memory in buffers)
    for number, memory in enumerate(buffers):
        flat = memory.cast("B") if memory.nbytes else memoryview(b"")
        for offset in range(0, max(1, len(flat)), PART_BYTES):
            piece = bytes(flat[offset : offset + PART_BYTES])
            yield OutputPart(run_id, rank, number, offset, len(flat), total, piece)
