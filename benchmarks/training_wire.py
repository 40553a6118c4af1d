"""What several ranks on one host pay for it: steps of ``fit`` and bare all-reduces, by shared memory and by sockets.

A plain process with both cores, one rank with both cores, and two ranks with one core each, take turns on the same
machine, without Spark. Ratios are taken within a turn; shown are medians over the turns.

    python benchmarks/training_wire.py [--turns 5] [--rows 4096]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from models import CNN, MLP, TIMED_FIT

ANSWER_SECONDS = 300.0

MODELS = {"CNN": CNN, "MLP": MLP}
CASES = [("CNN", 128, 3), ("CNN", 512, 3), ("MLP", 128, 12), ("MLP", 512, 24)]
SUM = """
import time, tensorflow as tf
vector = tf.zeros([count])
function = tf.function(lambda: collectives.all_reduce([vector]), autograph=False)
function()
collectives.barrier()
began = time.perf_counter()
for _ in range(repeats):
    function()
sample = (time.perf_counter() - began) / repeats
"""
SIZES = [(1, 100), (1 << 18, 50), (1 << 22, 6), (1 << 24, 3)]


class System(NamedTuple):
    """Processes that run the same cell. ``share`` of memory; ``ranks`` 0 is a process that knows nothing of us."""

    title: str
    ranks: int
    share: bool = True


SYSTEMS = [System("plain", 0), System("1 rank", 1), System("2, shared memory", 2), System("2, sockets", 2, False)]


def serve(rank: int, addresses: list[str], share: bool, pipe: Connection) -> None:
    """A trainer, or a plain process where there are no addresses, which runs the cells that come through ``pipe``."""
    import keras

    collectives = None
    if addresses:
        from tfos_magic.training.collectives import form_cluster

        threads = max(1, (os.cpu_count() or 1) // len(addresses))
        collectives = form_cluster(rank, addresses, threads=threads, share=share)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            cell, names, distribute = pipe.recv()
            namespace = {"__name__": "__main__", "collectives": collectives, **names}
            with _distributed(collectives if distribute else None):
                exec(compile(cell, "<cell>", "exec"), namespace)
            pipe.send(namespace["sample"])
            keras.backend.clear_session()
    os._exit(0)


def _distributed(collectives: Any) -> contextlib.AbstractContextManager[None]:
    if collectives is None:
        return contextlib.nullcontext()
    from tfos_magic.training.run import RunContext, StopSignal, distributed

    return distributed(RunContext("run", collectives, lambda message: None, StopSignal()))


class Running:
    """The processes of a system."""

    def __init__(self, system: System) -> None:
        context = multiprocessing.get_context("spawn")
        self._held = [socket.socket() for _ in range(system.ranks)]
        for held in self._held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{held.getsockname()[1]}" for held in self._held]
        self._pipes = []
        self._processes = []
        for rank in range(max(1, system.ranks)):
            ours, theirs = context.Pipe()
            arguments = (rank, addresses, system.share, theirs)
            process = context.Process(target=serve, args=arguments, name=f"{system.title}-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers()

    def run(self, cell: str, distribute: bool = True, **names: Any) -> Any:
        """Run a cell on all ranks and give the ``sample`` of rank 0."""
        for pipe in self._pipes:
            pipe.send((cell, names, distribute))
        return self._answers()[0]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
        for held in self._held:
            held.close()

    def _answers(self) -> list[Any]:
        for pipe in self._pipes:
            if not pipe.poll(ANSWER_SECONDS):
                raise TimeoutError(f"a process did not answer within {ANSWER_SECONDS:.0f} s")
        return [pipe.recv() for pipe in self._pipes]


@contextlib.contextmanager
def running(systems: list[System]) -> Iterator[dict[System, Running]]:
    with contextlib.ExitStack() as stack:
        started = {system: Running(system) for system in systems}
        for process in started.values():
            stack.callback(process.close)
        yield started


def show_steps(systems: dict[System, Running], rows: int, turns: int) -> None:
    print(f"fit, {rows} rows of 784 floats, {os.cpu_count()} cores: ms per step, and throughput over that of plain")
    for model, batch, epochs in CASES:
        taken: dict[System, list[tuple[float, float]]] = {system: [] for system in systems}
        order = list(systems.items())
        for turn in range(turns):
            for system, process in order[turn % len(order) :] + order[: turn % len(order)]:
                cell = TIMED_FIT.format(model=MODELS[model])
                taken[system].append(process.run(cell, system.ranks > 0, rows=rows, batch=batch, epochs=epochs))
        steps = epochs * -(-rows // batch)
        for system, samples in taken.items():
            plain = taken[SYSTEMS[0]]
            wall = statistics.median(sample[0] for sample in samples) / steps * 1e3
            ratio = statistics.median(p[0] / s[0] for p, s in zip(plain, samples, strict=True))
            work = statistics.median(p[1] / (s[1] * max(1, system.ranks)) for p, s in zip(plain, samples, strict=True))
            print(f"  {model} {batch:4}  {system.title:18}{wall:8.2f} ms{ratio:7.2f}   by processor time{work:6.2f}")


def show_sums(systems: dict[System, Running], turns: int) -> None:
    print("all-reduce of float32, 2 ranks: ms")
    for count, repeats in SIZES:
        for system, process in systems.items():
            if system.ranks > 1:
                taken = [process.run(SUM, False, count=count, repeats=repeats) for _ in range(turns)]
                print(f"  {count * 4:10,} bytes  {system.title:18}{statistics.median(taken) * 1e3:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with running(SYSTEMS) as systems:
        show_steps(systems, options.rows, options.turns)
        show_sums(systems, options.turns)


if __name__ == "__main__":
    main()
