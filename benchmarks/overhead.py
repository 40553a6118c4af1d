"""What distribution costs: throughput beside plain Keras ``fit``, and the time from running a cell to its first step.

Four systems take turns on the same machine: one plain process, a cluster of one worker, a cluster of two workers, and
two plain processes that each train on half of every batch and exchange nothing. The last is no way to train; it shows
what two processes on these cores could reach at best, so what is missing to it is the cost of the exchange.

All run the same cell on MNIST-shaped arrays made on the spot. Ratios are taken within a turn, and shown are medians
over the turns, so that a busy neighbour disturbs both sides of a ratio. Two epochs, to trace and warm up, do not count.

    python benchmarks/overhead.py [--turns 5] [--rows 4096] [--starts 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from first_step import prepare_environment
from first_step import report as report_first_step
from models import CNN, MLP, PIXELS, TIMED_FIT
from plain import PlainProcess, plain_processes


class Case(NamedTuple):
    """A model, its global batch, and how many epochs make a measurement of some seconds."""

    name: str
    model: str
    batch: int
    epochs: int

    def names(self, rows: int, share: int = 1) -> dict[str, Any]:
        """What the cell reads, for one of ``share`` equal parts of the rows of every batch."""
        return {"rows": rows // share, "batch": self.batch // share, "epochs": self.epochs}

    @property
    def cell(self) -> str:
        return TIMED_FIT.format(model=self.model, inputs=PIXELS)


CASES = [
    Case("CNN, batch 128", CNN, 128, 3),
    Case("CNN, batch 512", CNN, 512, 3),
    Case("MLP, batch 128", MLP, 128, 16),
    Case("MLP, batch 512", MLP, 512, 24),
]


class Sample(NamedTuple):
    """Seconds that one measurement took: on the clock, and of processors, summed over the processes."""

    wall: float
    processor: float


@dataclass(frozen=True)
class System:
    """Something to measure. ``aim`` is the least ratio of its throughput to that of plain Keras; 0 for none."""

    title: str
    measure: Callable[[Case, int], Sample]
    aim: float = 0.0


def plain_system(title: str, processes: list[PlainProcess]) -> System:
    """Plain processes, each with its part of every batch."""

    def measure(case: Case, rows: int) -> Sample:
        for process in processes:
            process.begin(case.cell, case.names(rows, len(processes)), "sample")
        taken = [process.finish() for process in processes]
        return Sample(max(wall for wall, _ in taken), sum(processor for _, processor in taken))

    return System(title, measure)


def cluster_system(title: str, cluster: Any, aim: float) -> System:
    def measure(case: Case, rows: int) -> Sample:
        wall, processor = cluster.run(case.cell, names=case.names(rows), outputs=["sample"])["sample"]
        return Sample(wall, processor * cluster.size)  # rank 0 speaks for all: their parts are equal

    return System(title, measure, aim)


def compare(rows: int, turns: int) -> tuple[list[System], dict[tuple[str, str], list[Sample]]]:
    """Give the systems, plain Keras first, and their samples by case and title, one for each turn."""
    from tfos_magic import TFCluster
    from tfos_magic.spark.session import make_local_session

    spark = make_local_session(5)
    spark.sparkContext.setLogLevel("ERROR")
    with (
        TFCluster(spark, workers=1) as one,
        TFCluster(spark, workers=2) as two,
        plain_processes(1) as plain,
        plain_processes(2, threads=1) as halves,
    ):
        systems = [
            plain_system("plain Keras", plain),
            cluster_system("1 worker", one, 0.95),
            cluster_system("2 workers", two, 0.9),
            plain_system("2 plain halves", halves),
        ]
        samples = take_turns(systems, rows, turns)
    spark.stop()
    return systems, samples


def take_turns(systems: list[System], rows: int, turns: int) -> dict[tuple[str, str], list[Sample]]:
    samples: dict[tuple[str, str], list[Sample]] = {}
    for turn in range(turns):
        for case in CASES:
            # Another one first in every turn, should the others' work come in bursts.
            first = turn % len(systems)
            for system in systems[first:] + systems[:first]:
                samples.setdefault((case.name, system.title), []).append(system.measure(case, rows))
    return samples


def report_throughput(rows: int, turns: int) -> list[str]:
    """Measure and say what came of it."""
    systems, samples = compare(rows, turns)
    lines = [
        f"Throughput: {rows} rows of 784 floats, {os.cpu_count()} cores, medians of {turns} turns",
        "",
        f"{'':16}{'':16}{'rows/s':>9}{'ratio':>8}{'lowest':>8}{'highest':>9}{'by processor':>14}{'aim':>6}",
    ]
    for case in CASES:
        peer = samples[case.name, systems[0].title]
        for system in systems:
            taken = samples[case.name, system.title]
            pace = rows * case.epochs / statistics.median(sample.wall for sample in taken)
            lines.append(f"{case.name:16}{system.title:16}{pace:9,.0f}{ratios(peer, taken)}{aim_of(system)}")
    lines += [
        "",
        "A ratio is throughput over that of plain Keras in the same turn. 'By processor' compares processor seconds",
        "instead: all that is computed on all workers counts, waiting for each other or for a busy machine does not.",
    ]
    return lines


def ratios(peer: list[Sample], taken: list[Sample]) -> str:
    if peer is taken:
        return ""
    walls = [theirs.wall / ours.wall for theirs, ours in zip(peer, taken, strict=True)]
    work = statistics.median(theirs.processor / ours.processor for theirs, ours in zip(peer, taken, strict=True))
    return f"{statistics.median(walls):8.2f}{min(walls):8.2f}{max(walls):9.2f}{work:14.2f}"


def aim_of(system: System) -> str:
    return f"{system.aim:6.2f}" if system.aim else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="measurements of each throughput; 0 leaves them out")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--starts", type=int, default=3, help="starts from nothing; 0 leaves them out")
    options = parser.parse_args()
    prepare_environment()
    if options.turns:
        print("\n".join([*report_throughput(options.rows, options.turns), ""]), flush=True)
    if options.starts:
        print("\n".join(report_first_step(options.starts)))


if __name__ == "__main__":
    main()
