"""What TensorFlowOnSpark does in the inference benchmark.

python benchmarks/predict_tfos.py FOLDER MODEL.keras BATCH     (told what to do on its standard input, by predict.py)
"""

from __future__ import annotations

import sys
from typing import Any

from tfos_peer import serve


def infer(arguments: Any, context: Any) -> None:
    """The peer's "main" function on each worker: answer every batch with its probabilities until there are no more."""
    import keras
    import numpy as np

    model = keras.models.load_model(arguments["model"])
    feed = context.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(arguments["batch"])
        if batch:
            made = model.predict_on_batch(np.array(batch, np.float32))
            feed.batch_results(made.tolist())


def predict(spark: Any, cluster: Any, path: str) -> float:
    """The sum over the rows below ``path`` of the probabilities of the first and of twice the last class."""
    rows = spark.read.parquet(path).rdd.map(lambda row: row["pixels"])
    return float(cluster.inference(rows).map(lambda made: made[0] + 2 * made[-1]).sum())


if __name__ == "__main__":
    serve(sys.argv[1], infer, {"model": sys.argv[2], "batch": int(sys.argv[3])}, predict)
