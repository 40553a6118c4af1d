"""Sums over the workers that are there at the moment, through the first parameter server.

Where a wire of peers breaks with a peer, this one goes on without: what a rank that left would have added is not there,
and a rank that came later takes part from the next epoch on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfos_magic.training.allreduce import PeerLost, among_zeros, mean_by_sum, place_of_rows
from tfos_magic.training.allreduce.arrays import Turns
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.parameter_server.array_frames import Array
from tfos_magic.training.parameter_server.client import ServerGroup
from tfos_magic.training.parameter_server.coordinator import EPOCH_BEGINS


class ServerWire:
    """The wire of one run. ``alone`` is true while this rank is not in the run: then a sum has its own terms only.

    Operations are named by where in the cell they stand, so that a rank that joins meets the others.
    """

    def __init__(self, group: ServerGroup, run_id: str, alone: bool) -> None:
        self.group = group
        self.run_id = run_id
        self.alone = alone
        self.present = list(range(group.size))
        self.fit = 0
        self._epoch = -1
        self._number = 0
        self._turns = Turns()
        self._sent_before, self._waited_before = group.sent, group.waited

    @property
    def sent(self) -> int:
        """Bytes that this rank sent to the servers in this run: gradients, sums and all."""
        return self.group.sent - self._sent_before

    @property
    def waited(self) -> float:
        """Seconds that this rank waited for the servers' answers in this run."""
        return self.group.waited - self._waited_before

    @property
    def exchanged(self) -> float:
        """Zero: what the servers' answers take is told as a whole."""
        return 0.0

    @property
    def name(self) -> str:
        return "the parameter servers"

    def begin_fit(self) -> None:
        self.fit += 1
        self._epoch, self._number = -1, 0

    def join(self) -> int | None:
        """Wait until this rank may take part in the current fit; gives the epoch, or None when the fit is over."""
        header, _ = self.group.ask_first({"kind": "join", "run": self.run_id, "fit": self.fit}, "the next epoch")
        if header["over"]:
            return None
        self.alone = False
        self._epoch, self._number = int(header["epoch"]), 0
        return self._epoch

    def begin_epoch(self, epoch: int) -> None:
        """Come together with all others, those included that joined."""
        if self.alone or epoch == self._epoch:
            return
        self._epoch, self._number = epoch, 0
        self._ask("an epoch to begin", EPOCH_BEGINS, ())

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            return [tf.convert_to_tensor(total) for total in self.sum_arrays(*(np.asarray(t) for t in tensors))]
        return self._turns.reduce(self.sum_arrays, tensors)

    def mean(self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return mean_by_sum(self, tensors, weight, summed)

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        offset, total = place_of_rows(self, self.group.rank, self.group.size, tensors)
        return self.sum([among_zeros(tensor, offset, total) for tensor in tensors])

    def sum_arrays(self, *arrays: Array) -> list[Array]:
        """Sum NumPy arrays over the workers that are there. Raises what :meth:`ServerGroup.exchange` does."""
        if self.alone:
            return list(arrays)
        self._number += 1
        return self._ask("a sum over the workers", self._number, arrays)

    def align(self) -> None:
        """Nothing is numbered here that a graph could number otherwise."""

    def explain(self, error: Exception) -> str | None:
        return self.group.failure or self.group.lost or None

    def abort(self, reason: str) -> None:
        self.group.abort(reason)

    def close(self) -> None:
        """Nothing of its own: the connections are the group's."""

    def _ask(self, what: str, number: int, arrays: Sequence[Array]) -> list[Array]:
        place = [self.fit, self._epoch, number]
        header, totals = self.group.ask_first({"kind": "sum", "run": self.run_id, "place": place}, what, arrays)
        self.present = header["present"]
        return totals


class ServedCollectives(Collectives):
    """Collective operations among the workers that are there. Rank 0 always is, or the run is over."""

    def __init__(self, wire: ServerWire, timeout: float) -> None:
        self._served = wire
        super().__init__(wire.group.rank, wire.group.size, timeout=timeout, wire=wire)

    @property
    def wire(self) -> ServerWire:
        return self._served

    def gather(self, values: Sequence[int]) -> np.ndarray[Any, Any]:
        """As with all ranks present: those that are not say what rank 0 says, or, alone, what this rank says."""
        table = np.zeros((self.size, len(values)), np.int64)
        table[self.rank] = values
        table = np.array(self.all_reduce([tf.constant(table)])[0])
        present = [self.rank] if self.wire.alone else self.wire.present
        absent = [rank for rank in range(self.size) if rank not in present]
        table[absent] = table[min(present)]
        return table

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int = 0) -> list[tf.Tensor]:
        """Alone, a rank keeps what it has: it takes over the servers' weights when it joins."""
        if self.wire.alone:
            return list(tensors)
        if root not in self.wire.present:
            raise PeerLost(f"rank {root}, which was to broadcast its values, left the run")
        return super().broadcast(tensors, root)

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
