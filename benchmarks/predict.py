"""Inference over a DataFrame: tfos_magic.frames.predict beside Spark's own predict_batch_udf and TensorFlowOnSpark.

A Keras classifier of 784 float32 pixels, over rows that lie in Spark's memory; each result is summed by Spark, and the
sums must agree. Ours and Spark's way load the model once in each Python worker. TensorFlowOnSpark has a session of its
own, where it reads its rows from Parquet; it gets fewer of them, and is compared by rows per second.

    python benchmarks/predict.py [--rows 60000] [--peer-rows 6000] [--batch 1024] [--rounds 5] [--no-tfos]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, FloatType
from sessions import CORES, local_session
from tfos_peer import NAME as TFOS
from tfos_peer import TFoS, tensorflowonspark
from turns import Turn, processor, ratio, take_turns, wall

import tfos_magic.frames as tfs

PIXELS = 784
CLASSES = 10
SMALL = 4096
OURS = "tfos_magic.frames"
PEER = "predict_batch_udf"
AIM, TFOS_AIM = 1.2, 20
TOLERANCE = 1e-5


def classifier(kind: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    if kind == "MLP":
        body = [keras.layers.Dense(128, activation="relu")]
    else:
        body = [
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
        ]
    return keras.Sequential([keras.Input((PIXELS,)), *body, keras.layers.Dense(CLASSES, activation="softmax")])


def images(spark: SparkSession, rows: int) -> DataFrame:
    # One draw to a row, spread over its pixels: what the values are does not matter, drawing them takes long.
    pixels = F.transform(F.sequence(F.lit(1), F.lit(PIXELS)), lambda i: (i * F.col("r") % 1.0).cast("float"))
    frame = spark.range(0, rows, 1, CORES).select("id", F.rand(2).alias("r")).select("id", pixels.alias("pixels"))
    frame = frame.cache()
    frame.count()
    return frame


def by_spark(model: keras.Model, batch: int) -> Callable[..., Column]:
    """The peer, as its documentation has it: the model is loaded where the function is made."""
    config, weights = model.to_json(), model.get_weights()

    def make() -> Callable[[np.ndarray], np.ndarray]:
        import keras

        loaded = keras.models.model_from_json(config)
        loaded.set_weights(weights)
        return lambda pixels: loaded.predict(pixels, batch_size=batch, verbose=0)

    udf = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=batch, input_tensor_shapes=[[PIXELS]])
    return udf  # type: ignore[no-any-return]


def rivals(model: keras.Model, frame: DataFrame, batch: int) -> dict[str, Callable[[], float]]:
    """Each gives the sum over all rows of the probabilities of the first and of twice the last class."""
    udf = by_spark(model, batch)

    def summed(scored: DataFrame) -> float:
        of_row = F.col("prediction")[0] + 2 * F.col("prediction")[CLASSES - 1]
        return float(scored.agg(F.sum(of_row.cast("double"))).first()[0])

    return {
        PEER: lambda: summed(frame.withColumn("prediction", udf("pixels"))),
        OURS: lambda: summed(tfs.predict(model, frame, features=["pixels"], batch_size=batch)),
    }


def peer_of(options: argparse.Namespace, model: keras.Model, folder: Path) -> Any:
    """A TensorFlowOnSpark cluster that has loaded ``model``, or None."""
    if options.no_tfos:
        return nullcontext(None)
    model.save(folder / "model.keras")
    return tensorflowonspark("predict_tfos.py", folder / "tfos.log", str(folder / "model.keras"), str(options.batch))


def measure(kind: str, frames: dict[str, DataFrame], options: argparse.Namespace) -> bool:
    """Take turns with one model and print its table; True when the sums agree."""
    model = classifier(kind)
    work, small = (rivals(model, frames[size], options.batch) for size in ("all", "few"))
    with tempfile.TemporaryDirectory(prefix="tfos-benchmark-") as name, peer_of(options, model, Path(name)) as peer:
        expected = 0.0
        if isinstance(peer, TFoS):
            for size in ("peer", "few"):
                frames[size].select("pixels").write.parquet(f"{name}/{size}")
            work[TFOS], small[TFOS] = lambda: peer.ask(f"{name}/peer"), lambda: peer.ask(f"{name}/few")
            expected = rivals(model, frames["peer"], options.batch)[OURS]()
        taken = take_turns(work, options.rounds, small)
    show(kind, taken, options)
    sums = [(turns[0].value, expected if name == TFOS else taken[OURS][0].value) for name, turns in taken.items()]
    return all(abs(made - wanted) <= TOLERANCE * abs(wanted) for made, wanted in sums)


def show(kind: str, taken: dict[str, list[Turn]], options: argparse.Namespace) -> None:
    """Print one table and its ratios."""
    rows = {name: options.peer_rows if name == TFOS else options.rows for name in taken}
    print(f"\n{kind}: {options.rows:,} rows of {PIXELS} float32, local[{CORES}], medians of {options.rounds} rounds")
    print(f"{'':24}{'rows':>8}{'seconds':>9}{'processor s':>13}{'rows/s':>12}")
    for name, turns in taken.items():
        pace = f"{wall(turns):9.2f}{processor(turns):13.2f}{rows[name] / wall(turns):12,.0f}"
        print(f"{name:24}{rows[name]:8,}{pace}", flush=True)
    by_clock, by_processor = ratio(taken[PEER], taken[OURS])
    print(f"{PEER} / {OURS}: {by_clock:.2f} by the clock, {by_processor:.2f} by processor time (aim: at least {AIM})")
    if TFOS in taken:
        scale = options.rows / options.peer_rows
        times = [scale * peer.wall / ours.wall for peer, ours in zip(taken[TFOS], taken[OURS], strict=True)]
        print(f"{OURS}, times as fast as {TFOS}: {statistics.median(times):.0f} (aim: at least {TFOS_AIM})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--peer-rows", type=int, default=6_000, help="rows of TensorFlowOnSpark's turns")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-tfos", action="store_true", help="leave TensorFlowOnSpark out")
    options = parser.parse_args()
    spark = local_session(driver__memory="2g")
    everything = images(spark, options.rows)
    frames = {"all": everything, "peer": everything.where(F.col("id") < options.peer_rows)}
    frames["few"] = everything.limit(SMALL).repartition(CORES).cache()
    agree = [measure(kind, frames, options) for kind in ("MLP", "CNN")]
    spark.stop()
    if not all(agree):
        sys.exit(f"the sums differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
