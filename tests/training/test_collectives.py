"""Sums, concatenations and broadcasts between real processes."""

from __future__ import annotations

import numpy as np

from tests.training.conftest import succeeded


def test_sums_are_exact_and_equal_for_all_dtypes_sizes_and_modes(groups) -> None:
    cell = """
import numpy as np
import tensorflow as tf

shapes = [(), (0,), (3, 5), (700_000,), (1500, 1000)]
dtypes = ["float32", "float64", "int64", "int32", "float16"]
inputs = [tf.cast(tf.fill(shape, rank + 1), dtype) for shape in shapes for dtype in dtypes]
eager = collectives.all_reduce(inputs)
graph = tf.function(collectives.all_reduce)(inputs)
right = all(
    a.shape == b.shape == i.shape and a.dtype == b.dtype == i.dtype
    and np.all(a.numpy() == 6) and np.all(b.numpy() == 6)
    for a, b, i in zip(eager, graph, inputs))
repeated = [float(collectives.all_reduce([tf.constant(float(n * rank))])[0]) for n in range(5)]
"""
    for outcome in succeeded(groups[3].run(cell, "right", "repeated", bare=True)):
        assert outcome.values["right"]
        assert outcome.values["repeated"] == [0.0, 3.0, 6.0, 9.0, 12.0]


def test_rows_of_changing_numbers_are_concatenated_in_the_order_of_ranks(groups) -> None:
    cell = """
import tensorflow as tf

traced = tf.function(lambda a, b: collectives.concat([a, b]),
                     input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((None,), tf.int64)])
collectives.align()
results = []
for counts in [(1, 0, 2), (0, 0, 0), (5, 3, 0), (0, 64, 64), (1, 0, 2)]:
    own = tf.fill((counts[rank], 2), float(rank)), tf.fill((counts[rank],), tf.constant(rank, tf.int64))
    for call in (traced, lambda a, b: collectives.concat([a, b])):
        rows, numbers = call(*own)
        results.append((counts, rows.numpy(), numbers.numpy()))
"""
    for outcome in succeeded(groups[3].run(cell, "results", bare=True)):
        assert len(outcome.values["results"]) == 10
        for counts, rows, numbers in outcome.values["results"]:
            expected = np.repeat(np.arange(3), counts)
            assert np.array_equal(numbers, expected)
            assert np.array_equal(rows, np.stack([expected, expected], 1))


def test_broadcast_gives_the_values_of_the_root(groups) -> None:
    cell = """
import tensorflow as tf

got = [[float(t) for t in collectives.broadcast([tf.constant(rank + 0.5), tf.constant(10.0 * rank)], root)]
       for root in (0, 2)]
table = collectives.gather([rank, -rank]).tolist()
collectives.barrier(10.0)
"""
    for outcome in succeeded(groups[3].run(cell, "got", "table", bare=True)):
        assert outcome.values["got"] == [[0.5, 0.0], [2.5, 20.0]]
        assert outcome.values["table"] == [[0, 0], [1, -1], [2, -2]]


def test_threads_that_have_nothing_to_do_take_no_cores_of_other_ranks(groups) -> None:
    cell = """
from tensorflow.python.eager import context
spins = not context.context().config.experimental.disable_thread_spinning
"""
    for outcome in succeeded(groups[2].run(cell, "spins", bare=True)):
        assert outcome.values["spins"] is False
