"""Feed speed: DataFrame to spool, beside bare ``mapInArrow`` on the same DataFrame, and reading the spool as tf.data.

Rows are shaped like MNIST: an array of 784 floats and a label. The source is a Parquet file read anew by every job. The
feed and its peer run in turns; shown are medians. Each rank's receiver is a process of its own, as an agent is.

    python benchmarks/feed.py [--rows 60000] [--repeats 5] [--workers 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tfos_magic.cluster.feed import feed_dataframe
from tfos_magic.node.receiver import FeedReceiver
from tfos_magic.node.spool import Spool
from tfos_magic.records.planning import plan_feed

PIXELS = 784
TOKEN = "benchmark"
FEED = "feed"
TARGET = 0.9


class Sample(NamedTuple):
    """What one run took, in seconds: on the clock, and of processors, which busy neighbours disturb less."""

    wall: float
    processor: float


def serve(pipe: Connection) -> None:
    """A rank: a receiver and a spool, told what to do through ``pipe`` until it closes."""
    spool = Spool()
    receiver = FeedReceiver("127.0.0.1", TOKEN, spool)
    receiver.start()
    pipe.send(receiver.uri)
    while (order := pipe.recv()) is not None:
        name, *arguments = order
        pipe.send(getattr(spool, name)(FEED, *arguments))
    receiver.close()
    spool.close()


def ask(pipe: Connection, *order: Any, timeout: float = 60.0) -> Any:
    """Send an order to a rank and give its answer."""
    pipe.send(order)
    if not pipe.poll(timeout):
        raise TimeoutError(f"a receiver process did not answer {order[0]!r} within {timeout:g} s")
    return pipe.recv()


def write_rows(path: Path, rows: int) -> None:
    """Write ``rows`` random rows as Parquet in eight files, so that both slots have work."""
    random = np.random.default_rng(0)
    for part in np.array_split(np.arange(rows), 8):
        pixels = pa.array(random.random(len(part) * PIXELS, dtype=np.float32))
        offsets = pa.array(np.arange(len(part) + 1, dtype=np.int32) * PIXELS)
        labels = pa.array(random.integers(0, 10, len(part), dtype=np.int64))
        table = pa.table({"pixels": pa.ListArray.from_arrays(offsets, pixels), "label": labels})
        pq.write_table(table, path / f"part-{part[0]:08d}.parquet", compression="none", use_dictionary=False)


def bare(df: DataFrame) -> None:
    """The peer: every row reaches Python as Arrow, and nothing is done with it."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], names=["rows"])

    df.mapInArrow(count, "rows bigint").collect()


def feed(df: DataFrame, ranks: list[Connection], endpoints: list[str]) -> None:
    """One feed, committed on every rank."""
    plan = plan_feed(df.schema, label="label")
    for rank, pipe in enumerate(ranks):
        ask(pipe, "open", rank, len(ranks), plan.schema)
    report = feed_dataframe(df, plan, feed_id=FEED, endpoints=endpoints, token=TOKEN)
    for pipe in ranks:
        ask(pipe, "commit", report.partitions)


def reread(handles: list[dict[str, Any]]) -> None:
    """One epoch over the spool, batches of 128, rank after rank."""
    from tfos_magic.node.dataset import feed_dataset

    for handle in handles:
        for _ in feed_dataset(handle, batch_size=128, label="label"):
            pass


def measure(work: Callable[..., None], *arguments: Any) -> Sample:
    """Run ``work`` once; processor time is that of this process and all below it (JVM, receivers)."""
    before, started = processor_time(), time.perf_counter()
    work(*arguments)
    return Sample(time.perf_counter() - started, processor_time() - before)


def processor_time() -> float:
    here = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in [here, *here.children(recursive=True)])


def run(rows: int, repeats: int, workers: int, folder: Path) -> dict[str, list[Sample]]:
    """Give a sample of every repeat, by what was measured. Each is run once unmeasured first."""
    write_rows(folder, rows)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(workers)]
    processes = [context.Process(target=serve, args=(theirs,), name="feed-receiver") for _, theirs in pipes]
    for process in processes:
        process.start()
    ranks = [ours for ours, _ in pipes]
    endpoints = [pipe.recv() for pipe in ranks]
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    df = spark.read.parquet(str(folder))
    measured: dict[str, list[Sample]] = {"bare": [], "feed": [], "reread": []}
    for _ in range(repeats + 1):
        measured["bare"].append(measure(bare, df))
        measured["feed"].append(measure(feed, df, ranks, endpoints))
        handles = [ask(pipe, "handle") for pipe in ranks]
        measured["reread"].append(measure(reread, handles))
    spark.stop()
    for pipe, process in zip(ranks, processes, strict=True):
        pipe.send(None)
        process.join(10)
    return {name: taken[1:] for name, taken in measured.items()}


def show(measured: dict[str, list[Sample]], rows: int, workers: int) -> None:
    """Print the table and the ratios."""
    megabytes = rows * (PIXELS * 4 + 8) / 1e6
    titles = {
        "bare": "bare mapInArrow (peer)",
        "feed": f"feed to {workers} worker(s)",
        "reread": "spool as tf.data, batch 128",
    }
    print(f"{rows} rows of {PIXELS} floats and a label, {megabytes:.0f} MB, local[2]; medians\n")
    print(f"{'':30}{'seconds':>9}{'least':>8}{'rows/s':>11}{'MB/s':>8}{'processor s':>13}")
    walls = {name: [sample.wall for sample in samples] for name, samples in measured.items()}
    work = {name: statistics.median(sample.processor for sample in samples) for name, samples in measured.items()}
    for name, taken in walls.items():
        middle = statistics.median(taken)
        pace = f"{rows / middle:11,.0f}{megabytes / middle:8.0f}"
        print(f"{titles[name]:30}{middle:9.2f}{min(taken):8.2f}{pace}{work[name]:13.2f}")
    pairs = [peer / ours for peer, ours in zip(walls["bare"], walls["feed"], strict=True)]
    print(f"\nbare mapInArrow / feed (aim: at least {TARGET}), median of the turns: {statistics.median(pairs):.2f}")
    print(f"  by the least disturbed runs: {min(walls['bare']) / min(walls['feed']):.2f}")
    print(f"  by processor time: {work['bare'] / work['feed']:.2f}")
    again = statistics.median(walls["feed"]) / statistics.median(walls["reread"])
    print(f"reading again / feeding: {again:.1f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tfos-benchmark-") as folder:
        measured = run(options.rows, options.repeats, options.workers, Path(folder))
    show(measured, options.rows, options.workers)


if __name__ == "__main__":
    main()
