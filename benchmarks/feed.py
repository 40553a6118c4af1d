"""Feed speed. The first epoch: a DataFrame to the workers' spools, beside bare ``mapInArrow`` and TensorFlowOnSpark.
Later epochs: the spool as ``tf.data``, beside ``from_tensor_slices`` on arrays in memory, on one core.

Rows are shaped like MNIST: an array of 784 floats and a label. Or as ``--shape`` says: ``wide``, 200 columns of
doubles; ``narrow``, two doubles (try ten million rows); ``strings``, texts of 20 to 60 letters; each with a label. They
are in Parquet files that every job reads anew. The feed runs in its ordinary way, through Spark's rows, and as it does
by itself where it can, reading the files in place. Rivals take turns, shown are medians, and ratios are medians over
the rounds. TensorFlowOnSpark gets fewer rows, of the first shape: it is compared by MB/s.

    python benchmarks/feed.py [--shape images] [--rows 60000] [--peer-rows 12000] [--rounds 5] [--no-tfos]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feed_ranks import Ranks, receivers
from feed_rereading import BATCH, Reader, reader
from first_step import prepare_environment
from pyspark.sql import DataFrame, SparkSession
from tfos_peer import NAME as TFOS
from tfos_peer import TFoS, tensorflowonspark
from turns import Turn, processor, ratio, take_turns, wall

from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.driver.parquet_scan import SWITCH, find_scan

PIXELS = 784
ROW_BYTES = PIXELS * 4 + 8
SMALL = 1_000
FILES = 8
BARE, ORDINARY, IN_PLACE = "bare mapInArrow", "feed", "feed, files in place"
SPOOL, MEMORY = "spool", "memory"
SPOOL_IN_ORDER, MEMORY_IN_ORDER = "spool in order", "memory in order"
Rivals = dict[str, Callable[[], object]]


def images(random: np.random.Generator, rows: int) -> dict[str, Any]:
    pixels = pa.array(random.random(rows * PIXELS, dtype=np.float32))
    return {"pixels": pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * PIXELS), pixels)}


def wide(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {f"x{number}": random.random(rows) for number in range(200)}


def narrow(random: np.random.Generator, rows: int) -> dict[str, Any]:
    return {"x": random.random(rows), "z": random.random(rows)}


def strings(random: np.random.Generator, rows: int) -> dict[str, Any]:
    ends = np.cumsum(random.integers(20, 61, rows), dtype=np.int32)
    letters = random.integers(97, 123, int(ends[-1]), dtype=np.uint8)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return {"text": pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))}


SHAPES = {make.__name__: make for make in (images, wide, narrow, strings)}


def write_rows(path: Path, rows: int, shape: str = "images") -> Path:
    """Write ``rows`` random rows as Parquet in eight files, so that both slots have work."""
    random = np.random.default_rng(0)
    path.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        table = pa.table(SHAPES[shape](random, len(part)) | {"label": random.integers(0, 10, len(part))})
        pq.write_table(table, path / f"part-{number:05d}.parquet", compression="none", use_dictionary=False)
    return path


def bare(df: DataFrame) -> int:
    """The peer: every row reaches Python as Arrow, and nothing is done with it."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], names=["rows"])

    return sum(row.rows for row in df.mapInArrow(count, "rows bigint").collect())


def feed(spark: SparkSession, ranks: Ranks, df: DataFrame, in_place: bool) -> int:
    """One feed, with or without leave to read the files without Spark."""
    spark.conf.set(SWITCH, str(in_place).lower())
    return ranks.feed(df)


def first_epochs(spark: SparkSession, ranks: Ranks, folder: Path) -> Rivals:
    """What brings the rows of ``folder`` to Python or to the spools."""
    df = spark.read.parquet(str(folder))
    rivals: Rivals = {BARE: lambda: bare(df), ORDINARY: lambda: feed(spark, ranks, df, False)}
    if find_scan(df.select(*df.columns), plan_feed(df.schema, Selection(label="label")).sources) is not None:
        rivals[IN_PLACE] = lambda: feed(spark, ranks, df, True)
    return rivals


def later_epochs(reading: Reader) -> Rivals:
    """What reads an epoch of rows that are there."""
    names = (SPOOL, MEMORY, SPOOL_IN_ORDER, MEMORY_IN_ORDER)
    return {name: lambda name=name: reading.read(name) for name in names}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[Turn]]:
    """Give the turns of every rival. All run once unmeasured first, on few rows."""
    large, small, fewer = (
        write_rows(folder / name, rows, options.shape)
        for name, rows in (("large", options.rows), ("small", SMALL), ("fewer", options.peer_rows))
    )
    tfos = nullcontext(None) if options.no_tfos else tensorflowonspark("feed_tfos.py", folder / "tfos.log")
    options.bytes = sum(file.stat().st_size for file in large.iterdir())
    with receivers(options.workers) as ranks, reader() as reading, tfos as peer:
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        rivals, warm = first_epochs(spark, ranks, large), first_epochs(spark, ranks, small)
        for rival in rivals.values():
            rival()
        if reading.look(ranks.handles()) != options.rows:
            raise RuntimeError("the spools do not hold the rows that were fed")
        again = later_epochs(reading)
        for rival in again.values():
            rival()
        if isinstance(peer, TFoS):
            rivals[TFOS], warm[TFOS] = lambda: peer.ask(fewer), lambda: peer.ask(small)
        taken = take_turns(rivals, options.rounds, warm)
        taken |= take_turns(again, 2 * options.rounds, dict.fromkeys(again, lambda: None))
        spark.stop()
    return taken


def show(taken: dict[str, list[Turn]], options: argparse.Namespace) -> None:
    """Print the tables and the ratios."""
    sizes = {name: options.peer_rows if name == TFOS else options.rows for name in taken}
    bytes_of_row = options.bytes / options.rows
    print(f"{options.rows} rows, {options.shape}, {options.bytes / 1e6:.0f} MB; medians\n")
    print(f"{'first epoch, two cores':28}{'seconds':>9}{'rows/s':>11}{'MB/s':>8}{'processor s':>13}")
    for name, turns in taken.items():
        if name == SPOOL:
            print(f"\n{f'later epochs, batch {BATCH}, one core':28}")
        pace = sizes[name] / wall(turns)
        print(f"{name:28}{wall(turns):9.2f}{pace:11,.0f}{pace * bytes_of_row / 1e6:8.0f}{processor(turns):13.2f}")
    print()
    for slow, fast, aim in ((BARE, ORDINARY, 0.95), (BARE, IN_PLACE, 0.95), (MEMORY, SPOOL, 0.8)):
        if fast in taken:
            print(f"{slow} / {fast}: {_ratios(taken[slow], taken[fast])} (aim: at least {aim})")
    print(f"{MEMORY_IN_ORDER} / {SPOOL_IN_ORDER}: {_ratios(taken[MEMORY_IN_ORDER], taken[SPOOL_IN_ORDER])}")
    if TFOS in taken:
        scale = options.rows / options.peer_rows
        for name in (ORDINARY, IN_PLACE):
            if name in taken:
                times = [scale * peer.wall / ours.wall for peer, ours in zip(taken[TFOS], taken[name], strict=True)]
                print(f"{name}, times as fast as {TFOS}: {statistics.median(times):.0f} (aim: at least 20)")


def _ratios(slow: list[Turn], fast: list[Turn]) -> str:
    by_clock, by_processor = ratio(slow, fast)
    return f"{by_clock:.2f} by the clock, {by_processor:.2f} by processor time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="images")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--peer-rows", type=int, default=12_000, help="rows of TensorFlowOnSpark's turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--no-tfos", action="store_true", help="leave TensorFlowOnSpark out")
    options = parser.parse_args()
    options.no_tfos |= options.shape != "images"
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="tfos-benchmark-") as folder:
        show(measure(options, Path(folder)), options)


if __name__ == "__main__":
    main()
