"""All-reduces among many processes of this machine, and what each of them sends and computes: for scale.py.

One set of processes forms a group of each size after another, of its first ranks, on memory that they share or by TCP.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from plain import Ranks, free_addresses, start_process

FORMATIONS = 3
LOADED = ["tensorflow", "tfos_magic.training.collectives"]


class Sums(NamedTuple):
    """Sums of ``size`` bytes: what each of ``ranks`` sent, by its own count, in how many calls and bytes of sockets;
    its processor seconds, and the seconds of the slowest rank; all for one sum."""

    ranks: int
    apart: bool
    size: int
    sent: float
    calls: float
    socket_bytes: float
    cpu: float
    seconds: float


class Formed(NamedTuple):
    """A group formed: seconds of the slowest rank, the median of several times."""

    ranks: int
    apart: bool
    seconds: float


class Given:
    """Counts what sockets of Python are given to send in this process."""

    def __init__(self) -> None:
        self.calls = self.bytes = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[Given]:
        with contextlib.ExitStack() as stack:
            for name in ("send", "sendmsg"):
                counted = self._counted(getattr(socket.socket, name))
                stack.enter_context(mock.patch.object(socket.socket, name, counted))
            yield self

    def _counted(self, send: Callable[..., int]) -> Callable[..., int]:
        def count(peer: socket.socket, *arguments: Any) -> int:
            given = send(peer, *arguments)
            self.calls, self.bytes = self.calls + 1, self.bytes + given
            return given

        return count


def serve(pipe: Any, rank: int) -> None:
    """Form the groups that come through ``pipe``, and time sums in them."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    from tfos_magic.training.collectives import form_cluster

    collectives, given = form_cluster(0, [""]), Given()
    pipe.send("ready")
    with contextlib.suppress(EOFError), given.counting():
        while True:
            match pipe.recv():
                case (list() as addresses, bool() as share):
                    began = time.perf_counter()
                    if rank < len(addresses):
                        collectives = form_cluster(rank, addresses, threads=1, share=share, secret="benchmark")
                    pipe.send(time.perf_counter() - began)
                case (int() as size, int() as times):
                    pipe.send(
                        _summed(collectives, given, tf.ones([size // 4]), times) if collectives.size > 1 else None
                    )
                case None:
                    collectives.close()
                    collectives = form_cluster(0, [""])
                    pipe.send(None)
    os._exit(0)


def _summed(collectives: Any, given: Given, vector: Any, times: int) -> list[float]:
    def read() -> list[float]:
        return [collectives.sent, given.calls, given.bytes, time.process_time(), time.perf_counter()]

    collectives.all_reduce([vector])
    before = read()
    for _ in range(times):
        collectives.all_reduce([vector])
    return [(now - then) / times for now, then in zip(read(), before, strict=True)]


def measure(ranks: list[int], sizes: list[int], seconds: float = 2.0) -> tuple[list[Formed], list[Sums]]:
    """Form groups of so many ``ranks``, and add up vectors of ``sizes`` bytes for about ``seconds`` each."""
    formed, sums = [], []
    started = [start_process(serve, rank, loaded=LOADED) for rank in range(max(ranks))]
    with contextlib.closing(Ranks(started)) as processes:
        for count in ranks:
            for apart in (False, True):
                formed.append(Formed(count, apart, _form(processes, count, apart)))
                sums += [_measured(processes, count, apart, size, seconds) for size in sizes]
                processes.ask(None)
    return formed, sums


def _form(processes: Ranks, count: int, apart: bool) -> float:
    taken = []
    for _ in range(FORMATIONS):
        if taken:
            processes.ask(None)
        taken.append(max(processes.ask((free_addresses(count, apart), not apart))))
    return statistics.median(taken)


def _measured(processes: Ranks, count: int, apart: bool, size: int, seconds: float) -> Sums:
    once = max(answer[4] for answer in processes.ask((size, 1))[:count])
    answers = processes.ask((size, max(2, min(200, round(seconds / once)))))[:count]
    sent, calls, given, cpu, wall = zip(*answers, strict=True)
    means = [statistics.fmean(values) for values in (sent, calls, given, cpu)]
    return Sums(count, apart, size, *means, max(wall))
