"""Inference over a DataFrame: tfos_magic.frames.predict beside Spark's own predict_batch_udf, in turns.

A Keras classifier of 784 float32 pixels, over rows that lie in Spark's memory; each result is summed by Spark, and the
sums must agree. Both ways load the model once in each Python worker.

    python benchmarks/predict.py [--rows 60000] [--batch 1024] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, FloatType
from sessions import CORES, local_session
from turns import Turn, processor, ratio, take_turns, wall

import tfos_magic.frames as tfs

PIXELS = 784
CLASSES = 10
SMALL = 4096
OURS = "tfos_magic.frames"
PEER = "predict_batch_udf"
AIM = 1.2
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


def show(kind: str, rows: int, taken: dict[str, list[Turn]]) -> bool:
    """Print one table; True when the sums agree."""
    print(f"\n{kind}: {rows:,} rows of {PIXELS} float32, local[{CORES}], medians of {len(taken[OURS])} rounds")
    print(f"{'':20}{'seconds':>9}{'processor s':>13}{'rows/s':>12}")
    for name, turns in taken.items():
        print(f"{name:20}{wall(turns):9.2f}{processor(turns):13.2f}{rows / wall(turns):12,.0f}", flush=True)
    by_clock, by_processor = ratio(taken[PEER], taken[OURS])
    print(f"{PEER} / {OURS}: {by_clock:.2f} by the clock, {by_processor:.2f} by processor time (aim: at least {AIM})")
    values = [turns[0].value for turns in taken.values()]
    return max(values) - min(values) <= TOLERANCE * max(map(abs, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spark = local_session(driver__memory="2g")
    frame = images(spark, options.rows)
    few: Any = frame.limit(SMALL).repartition(CORES).cache()
    agree = []
    for kind in ("MLP", "CNN"):
        model = classifier(kind)
        work, small = (rivals(model, each, options.batch) for each in (frame, few))
        agree.append(show(kind, options.rows, take_turns(work, options.rounds, small)))
    spark.stop()
    if not all(agree):
        sys.exit(f"the sums differ by more than {TOLERANCE}")


if __name__ == "__main__":
    main()
