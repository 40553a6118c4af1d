"""What TensorFlowOnSpark does in the feed benchmark.

python benchmarks/feed_tfos.py FOLDER     (told what to do on its standard input; benchmarks/feed.py does that)
"""

from __future__ import annotations

import sys
from typing import Any

from tfos_peer import serve

BATCH = 128


def consume(arguments: Any, context: Any) -> None:
    """The peer's "main" function on each worker: take batches as arrays until there are no more."""
    import numpy as np

    feed = context.get_data_feed(train_mode=True)
    while not feed.should_stop():
        batch = feed.next_batch(BATCH)
        np.array([row[0] for row in batch], np.float32)
        np.array([row[1] for row in batch], np.int64)


def feed(spark: Any, cluster: Any, path: str) -> str:
    """Feed the Parquet files below ``path`` once, until the workers have taken every row from their queues."""
    cluster.train(spark.read.parquet(path).rdd.map(lambda row: (row["pixels"], row["label"])), 1)
    return path


if __name__ == "__main__":
    serve(sys.argv[1], consume, {}, feed)
