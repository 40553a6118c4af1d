"""Samples per second of ``fit`` with several workers, beside what else trains Keras on TensorFlow on one machine.

Ours with two workers and with one, MultiWorkerMirroredStrategy with tf_keras in two processes (it does not work with
Keras 3), and one plain Keras process with all cores, take turns on the same machine; without Spark, which feeds no row
here. All train the same model on the same arrays and the same global batch. Two plain processes that each train half
of it, and say nothing to each other, show what two processes could reach. Ratios are taken within a turn; shown are
medians over the turns. Two epochs, to trace and warm up, do not count.

    python benchmarks/training.py [--turns 5] [--rows 4096] [--batch 128,512] [--models MLP,CNN,…]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import peers
from models import CNN, COMMON_TOKENS, EMBEDDING, PIXELS, TIMED_FIT, TOKENS, TRANSFORMER, WIDE_MLP
from plain import Ranks, free_addresses, start_process


class Case(NamedTuple):
    """A model, its inputs, and how many epochs of 4,096 rows make a measurement of a second or two."""

    model: str
    inputs: str
    epochs: int

    @property
    def cell(self) -> str:
        return TIMED_FIT.format(model=self.model, inputs=self.inputs)


CASES = {
    "MLP": Case(WIDE_MLP, PIXELS, 8),
    "CNN": Case(CNN, PIXELS, 3),
    "embedding": Case(EMBEDDING, TOKENS, 3),
    "transformer": Case(TRANSFORMER, COMMON_TOKENS, 2),
}


class System(NamedTuple):
    """Something to measure: processes that are given their rank and all addresses, and then cells.

    ``aim`` is the least ratio of its throughput to that of the plain process; 0 for none. With ``apart`` each process
    trains its part of the rows and of the batch as if it were alone.
    """

    title: str
    serve: Callable[..., None]
    ranks: int
    aim: float = 0.0
    apart: bool = False


class Running(Ranks):
    """The processes of a system."""

    def __init__(self, system: System) -> None:
        addresses = free_addresses(system.ranks)
        self._shares = system.ranks if system.apart else 1
        started = [start_process(system.serve, rank, addresses) for rank in range(system.ranks)]
        super().__init__(started)

    def measure(self, cell: str, names: dict[str, int]) -> tuple[float, float]:
        """Seconds that a cell took: on the clock, for the slowest rank, and of processors, for all together."""
        names = names | {name: names[name] // self._shares for name in ("rows", "batch")}
        taken = self.ask((cell, names))
        return max(wall for wall, _ in taken), sum(processor for _, processor in taken)


def serve_plain(pipe: Any, rank: int, addresses: list[str]) -> None:
    import keras

    _serve(pipe, contextlib.nullcontext, keras.backend.clear_session)


def serve_half(pipe: Any, rank: int, addresses: list[str]) -> None:
    import tensorflow as tf

    _share_cores(tf, len(addresses))
    serve_plain(pipe, rank, addresses)


def serve_ours(pipe: Any, rank: int, addresses: list[str]) -> None:
    import keras

    from tfos_magic.training.collectives import form_cluster
    from tfos_magic.training.distributed_cell import RunContext, StopSignal, distributed

    threads = max(1, (os.cpu_count() or 1) // len(addresses))
    collectives = form_cluster(rank, addresses, threads=threads, secret="benchmark")

    def run() -> contextlib.AbstractContextManager[Any]:
        return distributed(RunContext("run", collectives, lambda message: None, StopSignal()))

    _serve(pipe, run, keras.backend.clear_session)
    os._exit(0)


def serve_mirrored(pipe: Any, rank: int, addresses: list[str]) -> None:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    peers.use()
    import tensorflow as tf
    import tf_keras

    _share_cores(tf, len(addresses))
    sys.modules["keras"] = tf_keras  # what the cell imports
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    _serve(pipe, strategy.scope, lambda: None)
    os._exit(0)


def _share_cores(tf: Any, ranks: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // ranks)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def _serve(pipe: Any, around: Callable[[], contextlib.AbstractContextManager[Any]], clear: Callable[[], None]) -> None:
    """Run the cells that come through ``pipe``, each within ``around()``, and answer with its ``sample``."""
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            cell, names = pipe.recv()
            namespace = {"__name__": "__main__", **names}
            with around():
                exec(compile(cell, "<cell>", "exec"), namespace)
            pipe.send(namespace["sample"])
            del namespace
            clear()


PLAIN = System("plain Keras", serve_plain, 1)
OURS = [System("2 workers", serve_ours, 2, 0.95), System("1 worker", serve_ours, 1, 0.95)]
HALVES = System("2 plain halves", serve_half, 2, apart=True)
MIRRORED = System("2 MultiWorker", serve_mirrored, 2)


@contextlib.contextmanager
def running(systems: list[System]) -> Iterator[list[Running]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Running(system))) for system in systems]


def measure(case: Case, processes: list[Running], turns: int, names: dict[str, int]) -> list[list[tuple[float, float]]]:
    """Seconds by system and turn. Another system is first in every turn, should the others' work come in bursts."""
    taken: list[list[tuple[float, float]]] = [[] for _ in processes]
    for turn in range(turns):
        for place in range(len(processes)):
            chosen = (turn + place) % len(processes)
            taken[chosen].append(processes[chosen].measure(case.cell, names))
    return taken


def show(name: str, batch: int, rows: int, systems: list[System], taken: list[list[tuple[float, float]]]) -> None:
    plain = taken[systems.index(PLAIN)]
    mirrored = taken[systems.index(MIRRORED)] if MIRRORED in systems else None
    for system, turns in zip(systems, taken, strict=True):
        pace = rows / statistics.median(wall for wall, _ in turns)
        ratios = [_ratio(plain, turns, 0), _ratio(mirrored, turns, 0) if mirrored else "", _ratio(plain, turns, 1)]
        aim = f"{system.aim:.2f}" if system.aim else ""
        print(f"{name:10}{batch:6}  {system.title:15}{pace:10,.0f}" + "".join(f"{r:>14}" for r in [*ratios, aim]))


def _ratio(peer: list[tuple[float, float]], turns: list[tuple[float, float]], what: int) -> str:
    return f"{statistics.median(theirs[what] / mine[what] for theirs, mine in zip(peer, turns, strict=True)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", default="128,512", help="global batches")
    parser.add_argument("--models", default=",".join(CASES))
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    systems = [PLAIN, *OURS, HALVES, *([MIRRORED] if peers.have("tf_keras") else [])]
    columns = ["over plain", "over MultiW.", "by processor", "aim"]
    print(f"fit, {options.rows} rows, {os.cpu_count()} cores, medians of {options.turns} turns")
    print(f"{'model':10}{'batch':>6}  {'':15}{'samples/s':>10}" + "".join(f"{column:>14}" for column in columns))
    with running(systems) as processes:
        for name in options.models.split(","):
            for batch in map(int, options.batch.split(",")):
                names = {"rows": options.rows, "batch": batch, "epochs": CASES[name].epochs}
                taken = measure(CASES[name], processes, options.turns, names)
                show(name, batch, options.rows * CASES[name].epochs, systems, taken)
    print("'By processor' compares processor seconds of all processes with the plain one's: waiting does not count.")


if __name__ == "__main__":
    main()
