"""Later epochs in the feed benchmark: ``tf.data`` over a spool and over arrays in memory, in a process on one core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

BATCH = 128
EPOCH_SECONDS = 300.0


class Reader:
    """A process that reads whole epochs when asked."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def look(self, handles: list[dict[str, Any]]) -> int:
        """Make all datasets anew over these spools; gives the number of rows."""
        return self._ask("look", handles)

    def read(self, name: str) -> int:
        """Read one epoch of ``spool``, ``spool in order``, ``memory`` or ``memory in order``; gives the rows."""
        return self._ask("read", name)

    def _ask(self, *order: Any) -> int:
        self._pipe.send(order)
        if not self._pipe.poll(EPOCH_SECONDS):
            raise TimeoutError(f"the reading process did not answer {order[0]!r} within {EPOCH_SECONDS:g} s")
        return int(self._pipe.recv())


@contextmanager
def reader() -> Iterator[Reader]:
    """Start the reading process, and end it afterwards."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="feed-reader")
    process.start()
    try:
        yield Reader(ours)
    finally:
        ours.send(None)
        process.join(10)


def _serve(pipe: Connection) -> None:
    # Before TensorFlow is loaded, which makes a thread for each core that it may use.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    datasets: dict[str, list[Any]] = {}
    while (order := pipe.recv()) is not None:
        match order:
            case ("look", handles):
                datasets = _datasets(handles)
                pipe.send(_count(datasets["spool in order"]))
            case ("read", name):
                pipe.send(_count(datasets[name]))


def _datasets(handles: list[dict[str, Any]]) -> dict[str, list[Any]]:
    import numpy as np
    import tensorflow as tf

    from tfos_magic.columns.selection import Selection
    from tfos_magic.feed.trainer.shuffle_order import WINDOW_ROWS
    from tfos_magic.feed.trainer.spooled_dataset import feed_dataset

    labelled = Selection(label="label")

    def spooled(shuffle: bool) -> list[Any]:
        return [feed_dataset(handle, batch_size=BATCH, selection=labelled, shuffle=shuffle) for handle in handles]

    batches = [batch for dataset in spooled(False) for batch in dataset.as_numpy_iterator()]
    arrays = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches)
    memory = tf.data.Dataset.from_tensor_slices(arrays)
    return {
        "spool": spooled(True),
        "spool in order": spooled(False),
        "memory": [memory.shuffle(WINDOW_ROWS).batch(BATCH).prefetch(tf.data.AUTOTUNE)],
        "memory in order": [memory.batch(BATCH).prefetch(tf.data.AUTOTUNE)],
    }


def _count(datasets: list[Any]) -> int:
    return sum(int(labels.shape[0]) for dataset in datasets for _, labels in dataset)
