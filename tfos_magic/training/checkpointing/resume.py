"""Going on from checkpoints: each ``fit`` of a cell that runs again finds the state it left, on every rank."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfos_magic.checkpoints.checkpoint import Checkpoint, Position, decode, encode
from tfos_magic.errors import TrainingError
from tfos_magic.training.checkpointing import python_values, snapshot
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.logs import metrics
from tfos_magic.training.loop import Fit, Loop, Opening


def by_class(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Callbacks under names that are the same on all ranks, whichever of them act on one rank only."""
    names: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] = counts.get(kind, -1) + 1
        names[f"{kind}.{counts[kind]}"] = callback
    return names


class Recorded:
    """What an earlier attempt at the run left: ``checkpoints``, which rank 0 has, and their positions, known to all."""

    def __init__(self, collectives: Collectives, checkpoints: Sequence[Checkpoint]) -> None:
        self._collectives = collectives
        self._checkpoints = {checkpoint.position.fit: checkpoint for checkpoint in checkpoints}
        known = [[c.position.meta(), bool(c.details.get("stopped"))] for c in self._checkpoints.values()]
        shared = json.loads(broadcast_bytes(collectives, json.dumps(known).encode()))
        self._positions = {p.fit: (p, stopped) for p, stopped in ((Position.from_meta(m), s) for m, s in shared)}

    def __bool__(self) -> bool:
        return bool(self._positions)

    def claim(self, fit: Fit) -> None:
        """Tell ``fit`` where it goes on. One that was complete trains on when the cell now asks for more epochs."""
        if fit.index not in self._positions:
            return
        position, stopped = self._positions[fit.index]
        fit.position = position
        fit.over = position.complete and (stopped or position.epoch >= fit.epochs)
        if position.complete and not fit.over:
            self._positions = {index: known for index, known in self._positions.items() if index <= fit.index}

    def restore(self, loop: Loop, fit: Fit) -> None:
        """Put back model, optimizer, callbacks and history, skip the data ahead and move the first epoch.

        To be called on every rank, when the model is built, before rank 0's variables are broadcast. Raises
        :class:`TrainingError`, on all ranks, when the checkpoint is of another model, or of the middle of an epoch that
        had other batches.
        """
        assert fit.position is not None
        checkpoint = self._checkpoints.pop(fit.index, None)
        shared = decode(broadcast_bytes(self._collectives, encode(_shared(checkpoint)) if checkpoint else b""))
        variables = snapshot.variables(loop.model)
        snapshot.check_layout(shared.details["layout"], variables)
        if fit.position.step:
            same = shared.details.get("ranks") in (None, self._collectives.size)
            _check_batches(fit.position, shared.details["batches"], loop.data.batches, same)
        arrays = checkpoint.arrays if checkpoint else shared.arrays
        for i, variable in enumerate(variables):
            if f"v{i}" in arrays:
                snapshot.write(variable, arrays[f"v{i}"])
        if fit.position.step:
            fit.metrics = [arrays[f"m{i}"] for i in itertools.takewhile(lambda i: f"m{i}" in arrays, itertools.count())]
        _restore_callbacks(fit, shared)
        self._rewind(loop, fit)
        self._restore_generators(shared, loop, fit)

    def _rewind(self, loop: Loop, fit: Fit) -> None:
        """Set the first epoch, and the data to where that epoch goes on."""
        assert fit.position is not None
        loop.model._initial_epoch = max(fit.epochs, 1) if fit.over else fit.position.epoch
        if not (fit.over and loop.data.is_own):
            loop.data.skip_to(max(0, fit.position.epoch - fit.initial_epoch), fit.position.step)

    def _restore_generators(self, shared: Checkpoint, loop: Loop, fit: Fit) -> None:
        """Put back the generators that the process shares, unless the ranks' differ by the cell's own wish.

        Python code that reads data ahead has drawn more than training has seen. So its generators are put back as they
        were when the epoch began; where one iterator spans epochs, skipping ahead has drawn all that was drawn.
        """
        equal = self._are_equal()
        states = {kind: state for kind, state in shared.details["generators"].items() if equal[kind]}
        if loop.data.runs_python and (loop.data.spans_epochs or fit.position is None or fit.position.step):
            python = {kind: states.pop(kind) for kind in ("python", "numpy") if kind in states}
            fit.opening = None if loop.data.spans_epochs else Opening(python, shared.arrays)
        put_back_generators(states, shared.arrays)

    def _are_equal(self) -> dict[str, bool]:
        """Of each kind of generator, whether it has the same state on all ranks."""
        digests = snapshot.generator_digests()
        table = self._collectives.gather([digests[kind] for kind in sorted(digests)])
        return {kind: len(set(column.tolist())) == 1 for kind, column in zip(sorted(digests), table.T, strict=True)}


def put_back_generators(states: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    for kind, state in states.items():
        snapshot.put_back_generator(kind, python_values.thaw(state, arrays))


def reopen_epoch(model: Any, fit: Fit) -> None:
    """Begin the epoch that goes on in its middle. Rank 0 has the sums of all ranks, the others begin at zero."""
    sums, fit.metrics = fit.metrics, None
    if sums:
        for variable, array in zip(metrics.state(model), sums, strict=True):
            snapshot.write(variable, array)
    if fit.opening is not None:
        put_back_generators(fit.opening.states, fit.opening.arrays)


def broadcast_bytes(collectives: Collectives, data: bytes) -> bytes:
    """Give every rank the bytes of rank 0. A rank that others have not let in yet keeps its own."""
    if collectives.size == 1:
        return data
    length = int(collectives.gather([len(data)])[0, 0])
    padded = np.frombuffer(data[:length].ljust(-(-length // 4) * 4, b"\0"), np.int32)
    return bytes(collectives.broadcast([tf.constant(padded)])[0].numpy().tobytes()[:length])


def _check_batches(position: Position, then: Sequence[int | None], now: Sequence[int | None], same_ranks: bool) -> None:
    """Raise :class:`TrainingError` where the steps before ``position`` had other rows than the batches now.

    A batch of fed rows is a rank's share, of which another number of ranks has another size of the same whole.
    """
    if not same_ranks:
        then, now = then[:1], now[:1]
    if all(a is None or b is None or a == b for a, b in zip(then, now, strict=True)):
        return
    raise TrainingError(
        f"the checkpoint is from {position.words}, of an epoch of {_batches(*then)}; the cell's has {_batches(*now)}: "
        "resuming in the middle would skip some rows and repeat others. Give fit() the same data and batch size as "
        "before, or omit --resume to train from the start."
    )


def _batches(count: int | None, rows: int | None) -> str:
    return f"{count or 'an unknown number of'} batches" + (f" of {rows} rows" if rows else "")


def _shared(checkpoint: Checkpoint) -> Checkpoint:
    """The part of a checkpoint that every rank needs in full: all but what the ranks broadcast as tensors, and sums."""
    first = checkpoint.details["layout"][: checkpoint.details["broadcast"]]
    whole = {f"v{i}" for i, (_, dtype, _) in enumerate(first) if dtype in metrics.NUMBERS}
    arrays = {
        name: array
        for name, array in checkpoint.arrays.items()
        if name not in whole and not (name[0] == "m" and name[1:].isdigit())
    }
    return Checkpoint(checkpoint.position, checkpoint.details, arrays)


def _restore_callbacks(fit: Fit, shared: Checkpoint) -> None:
    for name, values in shared.details["callbacks"].items():
        if name in fit.callbacks:
            for attribute, value in values.items():
                python_values.put_back(fit.callbacks[name], attribute, python_values.thaw(value, shared.arrays))
    fit.history.history = python_values.thaw(shared.details["history"], shared.arrays)
    fit.history.epoch = list(shared.details["epochs"])
