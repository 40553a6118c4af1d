"""TFRecord files read and written by tfos_magic, beside TensorFlow on the same files, in turns.

Two sets: images (784 floats and a label) and narrow rows (eight numbers and two strings). Reading: ``tf.data`` with
``tf.io.parse_example`` on batches, the package's own reader to Arrow in this process, and ``spark.read`` to Spark's
rows (which also pays for the way into the JVM). Writing: TensorFlow's own classes and writer, and the package's. A sum
over a column, and the size of what is written, must agree.

    python benchmarks/tfrecord.py [--images 20000] [--narrow 200000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from sessions import CORES, local_session
from turns import Turn, processor, ratio, take_turns, wall

import tfos_magic
from tfos_magic.tfrecord.reading import ReadOptions, batches
from tfos_magic.tfrecord.writing import Job

FILES = 4
BATCH = 1024
OURS = "ours, to Arrow"
WRITES = "ours"
Rivals = dict[str, Callable[[], float]]


def images(rows: int) -> pa.RecordBatch:
    """784 floats and a label."""
    values = np.random.default_rng(1).random(rows * 784, np.float32)
    offsets = np.arange(rows + 1, dtype=np.int32) * 784
    return pa.record_batch(
        {"id": pa.array(np.arange(rows) % 10), "x": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))}
    )


def narrow(rows: int) -> pa.RecordBatch:
    """Four integers, four floats, two strings."""
    rng = np.random.default_rng(2)
    numbers = {name: pa.array(rng.integers(0, 1 << 20, rows)) for name in ("id", "b", "c", "d")}
    floats = {name: pa.array(rng.random(rows, np.float32)) for name in ("e", "f", "g", "h")}
    texts = {name: pc.cast(numbers[of], pa.string()) for name, of in (("s", "id"), ("t", "b"))}
    return pa.record_batch(numbers | floats | texts)


def spec_of(schema: pa.Schema) -> dict[str, Any]:
    kinds = {pa.int64(): tf.int64, pa.float32(): tf.float32, pa.string(): tf.string}
    return {
        field.name: tf.io.FixedLenFeature([784], tf.float32)
        if pa.types.is_list(field.type)
        else tf.io.FixedLenFeature([], kinds[field.type])
        for field in schema
    }


def readers(spark: SparkSession, files: list[str], schema: pa.Schema) -> Rivals:
    spec = spec_of(schema)
    frame = spark.read.format("tfrecord").schema(from_arrow_schema(schema)).option("maxPartitionBytes", "1").load(files)

    def by_tensorflow(parallel: int | None) -> float:
        data = tf.data.TFRecordDataset(files, num_parallel_reads=parallel).batch(BATCH)
        parsed = data.map(lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=parallel)
        return float(sum(int(tf.reduce_sum(batch["id"])) for batch in parsed))

    def ours() -> float:
        return float(sum(pc.sum(b["id"]).as_py() for file in files for b in batches(file, schema, ReadOptions())))

    return {
        "tf.data, one by one": lambda: by_tensorflow(None),
        f"tf.data, {CORES} at a time": lambda: by_tensorflow(CORES),
        OURS: ours,
        f"spark.read, {CORES} tasks": lambda: float(frame.agg(F.sum("id")).first()[0]),
    }


def writers(batch: pa.RecordBatch, folder: Path) -> Rivals:
    rows = batch.to_pylist()
    kinds = {pa.int64(): "int64_list", pa.float32(): "float_list", pa.string(): "bytes_list"}
    lists = {"int64_list": tf.train.Int64List, "float_list": tf.train.FloatList, "bytes_list": tf.train.BytesList}
    plan = [(f.name, kinds[f.type.value_type if pa.types.is_list(f.type) else f.type]) for f in batch.schema]

    def feature(kind: str, value: Any) -> tf.train.Feature:
        values = value if isinstance(value, list) else [value.encode() if isinstance(value, str) else value]
        return tf.train.Feature(**{kind: lists[kind](value=values)})

    def by_tensorflow() -> float:
        path = folder / "by-tensorflow"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in rows:
                features = tf.train.Features(feature={name: feature(kind, row[name]) for name, kind in plan})
                writer.write(tf.train.Example(features=features).SerializeToString())
        return float(path.stat().st_size)

    def ours() -> float:
        job = Job(str(folder / "ours"), "Example", compressed=False, overwrite=False, key="benchmark")
        pieces = (batch.slice(at, 10_000) for at in range(0, batch.num_rows, 10_000))  # as Spark hands them over
        return float((folder / "ours" / job.hidden / job.write(pieces, 0)).stat().st_size)

    return {"tf.train, TFRecordWriter": by_tensorflow, WRITES: ours}


def write_files(batch: pa.RecordBatch, folder: Path) -> list[str]:
    job = Job(str(folder), "Example", compressed=False, overwrite=False, key="benchmark")
    step = -(-batch.num_rows // FILES)
    names = [job.write(iter([batch.slice(at, step)]), 0) for at in range(0, batch.num_rows, step)]
    return [str(folder / job.hidden / name) for name in names]


def show(title: str, rows: int, size: int, ours: str, taken: dict[str, list[Turn]]) -> bool:
    """Print one table; True when the results agree."""
    print(f"\n{title}: {rows:,} rows, {size / 1e6:,.0f} MB, medians of {len(taken[ours])} rounds")
    print(f"{'':26}{'seconds':>9}{'processor s':>13}{'rows/s':>13}{'/ ours, clock':>15}{'/ ours, processor':>19}")
    for name, turns in taken.items():
        by_clock, by_processor = ratio(turns, taken[ours])
        pace = f"{rows / wall(turns):13,.0f}{by_clock:15.2f}{by_processor:19.2f}"
        print(f"{name:26}{wall(turns):9.2f}{processor(turns):13.2f}{pace}", flush=True)
    values = [turns[0].value for turns in taken.values()]
    return len(set(values)) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--narrow", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spark = local_session(driver__memory="2g")
    tfos_magic.register_tfrecord(spark)
    agree = []
    with tempfile.TemporaryDirectory(prefix="tfos-tfrecord-") as scratch:
        for title, batch in (("images", images(options.images)), ("narrow rows", narrow(options.narrow))):
            folder = Path(scratch) / title
            files, few = write_files(batch, folder), write_files(batch.slice(0, 1000), folder / "few")
            size = sum(Path(file).stat().st_size for file in files)
            taken = take_turns(readers(spark, files, batch.schema), options.rounds, readers(spark, few, batch.schema))
            agree.append(show(f"read {title}", batch.num_rows, size, OURS, taken))
            part = batch.slice(0, max(1, batch.num_rows // 10))
            taken = take_turns(writers(part, folder), options.rounds, writers(batch.slice(0, 100), folder / "few"))
            agree.append(show(f"write {title}", part.num_rows, size // 10, WRITES, taken))
    spark.stop()
    if not all(agree):
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
