"""Ranks on several hosts: those of a host reduce in shared memory before anything crosses a socket.

The first rank of each host speaks for it, as in the hierarchical all-reduce of Horovod (Sergeev and Del Balso 2018).
"""

from __future__ import annotations

from collections.abc import Sequence

from tfos_magic.training.wires import Array, PeerLost
from tfos_magic.training.wires.shared import SharedMemory
from tfos_magic.training.wires.sockets import SocketExchange


class Hosts:
    """Reduces within ``local``, the ranks of this host, then between the hosts; ``between`` is their first rank's."""

    name = "shared memory within hosts, TCP sockets between them"

    def __init__(self, local: SharedMemory | None, between: SocketExchange | None) -> None:
        self._local = local
        self._between = between

    @property
    def sent(self) -> int:
        return sum(exchange.sent for exchange in (self._local, self._between) if exchange is not None)

    @property
    def failure(self) -> str:
        return next((e.failure for e in (self._between, self._local) if e is not None and e.failure), "")

    def reduce(self, own: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        """Means of the hosts' means, each weighted by the weights of its ranks, are the means over all ranks."""
        try:
            if self._local is None:
                return self._reduce_between(own, results, averaged, weight)
            total = self._local.reduce(own, results, averaged, weight)
            if self._between is not None:
                halfway = [result.copy() for result in results]
                total = self._reduce_between(halfway, results, averaged, total)
            self._local.spread(results, results)
            return total
        except PeerLost as error:
            self.abort(str(error))
            raise

    def abort(self, reason: str) -> None:
        for exchange in (self._local, self._between):
            if exchange is not None:
                exchange.abort(reason)

    def close(self) -> None:
        for exchange in (self._local, self._between):
            if exchange is not None:
                exchange.close()

    def _reduce_between(self, own: Sequence[Array], results: Sequence[Array], averaged: int, weight: float) -> float:
        if self._between is None:
            raise PeerLost("a rank alone on its host has no connection to the others")
        return self._between.reduce(own, results, averaged, weight)
