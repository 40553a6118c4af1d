"""A cross-validation over a KerasClassifier beside single fits: 3 folds of 4 points, all on one warm cluster.

The single fits feed their rows anew, each on all workers, as a pipeline's do. Both train the same models on the same
rows; turns alternate, and the ratio is of their medians.

    python benchmarks/ml.py [--rows 20000] [--epochs 3] [--rounds 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy as np
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from sessions import CORES, local_session

from tfos_magic import TFCluster
from tfos_magic.cluster.shared import SHARED
from tfos_magic.ml import KerasClassifier

FOLDS, FEATURES = 3, 32
UNITS = (16, 32, 64, 128)
AIM = 2.0


def make(params: dict[str, Any]) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(params.get("units", 16), activation="relu"),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )


def rows(spark: Any, count: int) -> Any:
    x = np.random.default_rng(0).normal(size=(count, FEATURES)).astype("float32")
    label = np.digitize(x[:, :4].sum(1), [-1.5, 0.0, 1.5])
    values = [(row.tolist(), int(of)) for row, of in zip(x, label, strict=True)]
    return spark.createDataFrame(values, "features array<float>, label int").repartition(CORES, "label").cache()


def search(asked: KerasClassifier, df: Any, grid: list[Any], evaluator: Any) -> list[float]:
    validator = CrossValidator(
        estimator=asked, estimatorParamMaps=grid, evaluator=evaluator, numFolds=FOLDS, seed=1, parallelism=2
    )
    return list(validator.fit(df).avgMetrics)


def singly(asked: KerasClassifier, df: Any, grid: list[Any], evaluator: Any) -> list[float]:
    folds = [(pair[0].cache(), pair[1].cache()) for pair in CrossValidator(numFolds=FOLDS, seed=1)._kFold(df)]
    scores = [
        [evaluator.evaluate(asked.fit(train.select("*"), point).transform(test)) for train, test in folds]
        for point in grid
    ]
    asked.fit(df.select("*"), grid[int(np.argmax(np.mean(scores, axis=1)))])
    return [float(np.mean(of)) for of in scores]


def timed(work: Callable[[], list[float]]) -> tuple[float, list[float]]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with local_session(CORES + 2) as spark:  # two workers, a feed, and a job beside them
        df = rows(spark, options.rows)
        df.count()
        SHARED.ensure(lambda: TFCluster(spark, workers=2))
        asked = KerasClassifier(modelFn=make, epochs=options.epochs, batchSize=128, seed=1, shuffle=False, verbose=0)
        grid = ParamGridBuilder().addGrid(asked.modelParams, [{"units": units} for units in UNITS]).build()
        evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
        ways: dict[str, Callable[..., list[float]]] = {"search": search, "single fits": singly}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        scores: dict[str, list[float]] = {}
        for turn in range(options.rounds):
            for name in list(ways)[:: 1 if turn % 2 == 0 else -1]:
                took, scores[name] = timed(lambda name=name: ways[name](asked, df, grid, evaluator))  # type: ignore[misc]
                seconds[name].append(took)
                print(
                    f"{name:12} {took:7.1f} s   accuracy {' '.join(f'{score:.3f}' for score in scores[name])}",
                    flush=True,
                )
        SHARED.stop()
    ratio = statistics.median(seconds["single fits"]) / statistics.median(seconds["search"])
    print(f"{FOLDS} folds of {len(UNITS)} points: the search is {ratio:.2f} times as fast (aim {AIM:g})")
    gap = max(abs(mine - other) for mine, other in zip(*scores.values(), strict=True))
    print(f"largest difference of a point's accuracy: {gap:.4f}")


if __name__ == "__main__":
    main()
