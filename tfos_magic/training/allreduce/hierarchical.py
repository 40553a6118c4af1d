"""Ranks on several hosts: those of a host reduce in shared memory before anything crosses a socket.

The first rank of each host speaks for it, as in the hierarchical all-reduce of Horovod (Sergeev and Del Balso 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tfos_magic.training.allreduce import Array, PeerLost
from tfos_magic.training.allreduce.result_memory import LentArrays
from tfos_magic.training.allreduce.shared_memory import SharedMemory
from tfos_magic.training.allreduce.tcp_peers import TcpPeers


class HostGroups:
    """Reduces within ``local``, the ranks of this host, then between the hosts; ``between`` is their first rank's.

    ``ranks`` are those of each host, hosts in the order of ``between``.
    """

    name = "shared memory within hosts, TCP sockets between them"

    def __init__(self, local: SharedMemory | None, between: TcpPeers | None, ranks: Sequence[Sequence[int]]) -> None:
        self._local = local
        self._between = between
        self._ranks = ranks
        self._memory = LentArrays()
        if local is not None and between is not None:
            between.links.listen_to(local.mesh)

    @property
    def sent(self) -> int:
        return sum(exchange.sent for exchange in (self._local, self._between) if exchange is not None)

    @property
    def waited(self) -> float:
        if self._local is not None:  # which is told what the host's first rank has waited for other hosts
            return self._local.waited
        return self._waited_outside

    @property
    def _waited_outside(self) -> float:
        return 0.0 if self._between is None else self._between.waited

    @property
    def failure(self) -> str:
        return next((e.failure for e in (self._between, self._local) if e is not None and e.failure), "")

    def reduce(self, local_arrays: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        """Means of the hosts' means, each weighted by the weights of its ranks, are the means over all ranks."""
        with self._together():
            if self._local is None:
                return self._outside.reduce(local_arrays, results, averaged, weight)
            before = self._waited_outside
            if self._between is None:
                total = self._local.reduce(local_arrays, results, averaged, weight)
            else:
                halfway = self._memory.empty([(result.shape, result.dtype) for result in results])
                total = self._local.reduce(local_arrays, halfway, averaged, weight)
                total = self._between.reduce(halfway, results, averaged, total)
            self._local.spread(results, results, self._waited_outside - before)
            return total

    def gather(self, local_arrays: Sequence[Array], operation: int) -> list[Array]:
        """The first rank of a host sends its host's bytes to the other hosts, and hands out what comes from there."""
        with self._together():
            if self._local is None:
                return self._by_rank(self._frame([self._memory.joined(local_arrays)], operation))
            here = self._local.gather(local_arrays, operation)
            framed = np.zeros(0, np.uint8) if self._between is None else self._frame(here, operation)
            return self._by_rank(self._local.gather([framed], operation)[0])

    def abort(self, reason: str) -> None:
        for exchange in (self._local, self._between):
            if exchange is not None:
                exchange.abort(reason)

    def close(self) -> None:
        for exchange in (self._local, self._between):
            if exchange is not None:
                exchange.close()

    def _frame(self, here: Sequence[Array], operation: int) -> Array:
        """What all hosts have, one after another: the sizes of the ranks' bytes, then the bytes."""
        sizes = np.array([part.size for part in here], np.int64)
        return self._memory.joined(self._outside.gather([sizes.view(np.uint8), *here], operation))

    def _by_rank(self, framed: Array) -> list[Array]:
        bytes_by_rank: dict[int, Array] = {}
        for ranks in self._ranks:
            head = len(ranks) * np.dtype(np.int64).itemsize
            sizes, framed = np.frombuffer(framed[:head].tobytes(), np.int64), framed[head:]
            for rank, size in zip(ranks, sizes, strict=True):
                bytes_by_rank[rank], framed = framed[:size], framed[size:]
        return [bytes_by_rank[rank] for rank in sorted(bytes_by_rank)]

    @property
    def _outside(self) -> TcpPeers:
        if self._between is None:
            raise PeerLost("a rank alone on its host has no connection to the others")
        return self._between

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What fails within a host or between hosts fails on both."""
        try:
            yield
        except PeerLost as error:
            self.abort(str(error))
            raise
