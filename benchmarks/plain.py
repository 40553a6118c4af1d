"""The peers of the benchmarks: processes with TensorFlow loaded that run cells and know nothing of this package."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

ANSWER_SECONDS = 300.0


class PlainProcess:
    """A process that runs cells. ``threads`` 0 leaves TensorFlow's own choice alone, as people do."""

    def __init__(self, threads: int = 0) -> None:
        self._pipe, self._process = start_process(_serve, threads)
        answer(self._pipe)

    def begin(self, cell: str, names: dict[str, Any], wanted: str) -> None:
        """Start a cell with these names given."""
        self._pipe.send((cell, names, wanted))

    def finish(self) -> Any:
        """Wait for the cell's end and give the value of the name that was wanted."""
        return answer(self._pipe)

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)


@contextlib.contextmanager
def plain_processes(count: int, threads: int = 0) -> Iterator[list[PlainProcess]]:
    """Several plain processes, ended with the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(PlainProcess(threads))) for _ in range(count)]


def run_in_fresh_process(work: Callable[[float, Connection], None]) -> Any:
    """Give what ``work(time it was started at, pipe)`` sends, run in a new Python process."""
    pipe, process = start_process(_timed, work, time.time())
    try:
        return answer(pipe)
    finally:
        process.join(30)


def start_process(target: Callable[..., None], *arguments: Any, loaded: Sequence[str] = ()) -> tuple[Connection, Any]:
    """Start ``target(pipe, *arguments)`` in a new Python process; gives our end of the pipe, and the process.

    Where modules are to be ``loaded``, it is forked from one that has loaded them, which the first such call starts.
    """
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("forkserver" if loaded else "spawn")
    if loaded:
        context.set_forkserver_preload(list(loaded))
    process = context.Process(target=target, args=(theirs, *arguments), name="benchmark")
    process.start()
    theirs.close()
    return ours, process


class Ranks:
    """Processes that :func:`start_process` has started, one for each rank, and that say when they are ready."""

    def __init__(self, started: Sequence[tuple[Connection, Any]]) -> None:
        self._pipes, self._processes = zip(*started, strict=True)
        for pipe in self._pipes:
            answer(pipe)

    def ask(self, question: Any) -> list[Any]:
        """What each rank answers to the same question."""
        for pipe in self._pipes:
            pipe.send(question)
        return [answer(pipe) for pipe in self._pipes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)


def free_addresses(count: int, apart: bool = False) -> list[str]:
    """Free addresses of the loopback, for processes to listen on; ``apart`` each is on a host of its own, so to say."""
    free = [socket.create_server((f"127.0.0.{place + 1 if apart else 1}", 0)) for place in range(count)]
    addresses = ["{}:{}".format(*held.getsockname()) for held in free]
    for held in free:
        held.close()
    return addresses


def answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_SECONDS):
        raise TimeoutError(f"a benchmark's process did not answer within {ANSWER_SECONDS:.0f} s")
    return pipe.recv()


def _timed(pipe: Connection, work: Callable[[float, Connection], None], began: float) -> None:
    work(began, pipe)


def _serve(pipe: Connection, threads: int) -> None:
    import keras
    import tensorflow as tf

    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            cell, names, wanted = pipe.recv()
            namespace = {"__name__": "__main__", **names}
            exec(compile(cell, "<cell>", "exec"), namespace)
            pipe.send(namespace[wanted])
            keras.backend.clear_session()
