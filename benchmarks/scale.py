"""How cost grows with the number of workers: what is sent, said and computed, formulas of it, and where they lead.

Clusters of 1 to 16 workers train the same rows in the same global batches, their ranks on one host, and each as if on
a host of its own. Groups of up to 64 processes add up vectors. Bytes are taken from the product's own counters, and
counted a second time where sockets are given them. All workers share the cores of this machine: counts and processor
seconds are what to look at, and not how long anything takes. Writes SCALE.md beside this script.

    python benchmarks/scale.py [--workers 1,2,4,8,16] [--ranks 2,4,8,16,32,64]

Takes half an hour on two busy cores; four minutes with --workers 1,2 --ranks 2,4.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from feed import write_rows
from first_step import prepare_environment
from scale_cluster import BATCH, PLANS, WEIGHT_BYTES, Cluster, Heard, Run, split
from scale_cluster import measure as measure_cluster
from scale_laws import Law, Point
from scale_page import page
from scale_sums import Sums
from scale_sums import measure as measure_sums

from tfos_magic.spark.session import make_local_session
from tfos_magic.training.logs.progress import SECONDS_BETWEEN

PAGE = Path(__file__).with_name("SCALE.md")
SIZES = [4, 200_000, 4_000_000]


def measure(workers: list[int]) -> list[Cluster]:
    """Clusters of so many ``workers``, on one host and by TCP, where there are several."""
    with tempfile.TemporaryDirectory(prefix="tfos-benchmark-") as folder:
        spark = make_local_session(max(workers) + 1)
        paths = {steps: write_rows(Path(folder) / str(steps), steps * BATCH) for steps in {s for _, s in PLANS}}
        frames = {steps: spark.read.parquet(str(path)) for steps, path in paths.items()}
        links = [(count, apart) for count in workers for apart in (False, True) if count > 1 or not apart]
        clusters = [measure_cluster(spark, count, apart, frames) for count, apart in links]
        spark.stop()
    return clusters


def laws_of(clusters: list[Cluster], sums: list[Sums]) -> dict[str, Law]:
    """All formulas by what they are of."""
    return {**_of_steps(clusters), **_of_sums(sums), **_of_kernel(clusters)}


def _of_steps(clusters: list[Cluster]) -> dict[str, Law]:
    def of(apart: bool, field: str, terms: str, by_epoch: bool = False) -> Law:
        groups = [runs for _, runs in clusters if runs[0].apart == apart and runs[0].workers > 1]
        points = [Point(runs[0].workers, 0 if by_epoch else WEIGHT_BYTES) for runs in groups]
        values = [split(runs, field)[0 if by_epoch else 1] for runs in groups]
        return Law.fit(terms, list(zip(points, values, strict=True)))

    return {
        "bytes of a step and rank, TCP": of(True, "sent", "b, (n-1)"),
        "bytes of a step and rank, one host": of(False, "sent", "P, P/n s"),
        "bytes of an epoch and rank, TCP": of(True, "sent", "(n-1), n (n-1)", by_epoch=True),
        "bytes of an epoch and rank, one host": of(False, "sent", "1, n", by_epoch=True),
        "calls of a step and rank, TCP": of(True, "calls", "(n-1), (n-1) r"),
        "calls of a step and rank, one host": of(False, "calls", "(n-1), (n-1) s"),
        "CPU seconds of a step, all workers, TCP": of(True, "trainers", "1, n, n (n-1)"),
        "CPU seconds of a step, all workers, one host": of(False, "trainers", "1, n, n (n-1)"),
    }


def _of_sums(sums: list[Sums]) -> dict[str, Law]:
    by_tcp = [(Point(one.ranks, one.size), one) for one in sums if one.apart]
    return {
        "bytes of a sum and rank": Law.fit("b, (n-1)", [(point, one.sent) for point, one in by_tcp]),
        "calls of a sum and rank": Law.fit("(n-1), (n-1) r, b", [(point, one.calls) for point, one in by_tcp]),
        "CPU seconds of a sum and rank": Law.fit(
            "1, (n-1), (n-1) r, (n-1)^2, b", [(point, one.cpu) for point, one in by_tcp]
        ),
    }


def _of_kernel(clusters: list[Cluster]) -> dict[str, Law]:
    def heard(one: Heard, workers: int, runs: int) -> tuple[Point, Heard]:
        checkpoints = one.kinds["CheckpointPart"] * 3 * WEIGHT_BYTES
        return Point(workers, 0, one.seconds, 0, one.messages, checkpoints, runs), one

    def training(run: Run) -> Point:
        return Point(run.workers, 0, min(run.seconds, SECONDS_BETWEEN * run.all_steps), run.epochs)

    runs = [run for _, group in clusters for run in group]
    idle = [heard(one, group[0].workers, 0) for one, group in clusters]
    unfed = idle + [heard(run.heard, run.workers, 1) for _, group in clusters for run in group[2:]]
    return {
        "heartbeats": Law.fit("n T", [(point, one.kinds["Heartbeat"]) for point, one in unfed]),
        "messages of progress": Law.fit("n T, n E, n", [(training(run), run.heard.kinds["Progress"]) for run in runs]),
        "bytes to the kernel": Law.fit("m, c", [(point, one.bytes) for point, one in unfed]),
        "CPU seconds of the kernel": Law.fit("T, m, c, R", [(point, one.kernel) for point, one in unfed]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4,8,16", help="sizes of clusters")
    parser.add_argument("--ranks", default="2,4,8,16,32,64", help="sizes of groups that only add up")
    options = parser.parse_args()
    prepare_environment()
    clusters = measure([int(count) for count in options.workers.split(",")])
    formed, sums = measure_sums([int(count) for count in options.ranks.split(",")], SIZES)
    PAGE.write_text(page(clusters, formed, sums, laws_of(clusters, sums)))
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
