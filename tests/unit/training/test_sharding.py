"""Rows, buckets and marks: what needs TensorFlow but no peers."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfos_magic.errors import TrainingError  # noqa: E402
from tfos_magic.training.allreduce import ring  # noqa: E402
from tfos_magic.training.collectives import Collectives  # noqa: E402
from tfos_magic.training.inputs import marks, sharding  # noqa: E402


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 6, 29, 128])
def test_slices_cover_each_row_once_in_order_and_differ_by_one_at_most(rows: int, size: int) -> None:
    slices = [sharding.rank_slice(rows, rank, size) for rank in range(size)]
    assert [row for begin, end in slices for row in range(begin, end)] == list(range(rows))
    lengths = [end - begin for begin, end in slices]
    assert max(lengths) - min(lengths) <= 1


def test_batches_of_any_structure_are_cut_alike() -> None:
    element = {
        "dense": tf.range(10),
        "ragged": tf.RaggedTensor.from_row_lengths(tf.range(45), range(10)),
        "sparse": tf.sparse.from_dense(tf.eye(10)),
        "scalar": tf.constant(5),
    }
    cut = next(iter(sharding.shard_batches(tf.data.Dataset.from_tensors(element), 1, 3)))
    assert cut["dense"].numpy().tolist() == [3, 4, 5]
    assert cut["ragged"].row_lengths().numpy().tolist() == [3, 4, 5]
    assert np.array_equal(tf.sparse.to_dense(cut["sparse"]), np.eye(10)[3:6])
    assert cut["scalar"] == 5


def test_a_mark_stays_through_transformations_and_copies_nothing_else() -> None:
    fed = marks.mark_sharded(tf.data.Dataset.range(4).map(lambda i: i).batch(2))
    plain = tf.data.Dataset.from_tensor_slices([1, 2]).batch(2)
    assert marks.is_sharded(fed.map(lambda a: a).cache().shuffle(3).repeat(2).prefetch(1))
    assert marks.is_sharded(fed.concatenate(fed))
    assert not marks.is_sharded(plain.map(lambda a: a))
    with pytest.raises(TrainingError, match="one DataFrame"):
        marks.is_sharded(tf.data.Dataset.zip((fed, plain)))


def test_small_tensors_share_a_bucket_and_large_ones_stand_alone() -> None:
    piece = ring.PIECE_BYTES
    sizes = [(10, "float32"), (piece, "float32"), (20, "int32"), (piece // 2, "float32"), (piece, "float64")]
    assert ring.plan_buckets(sizes) == [[1], [4], [0, 3], [2]]
    full = [(piece - 1, "float32"), (1, "float32"), (5, "float32")]
    assert ring.plan_buckets(full) == [[0, 1], [2]]


def test_one_rank_alone_gets_back_what_it_gives() -> None:
    alone = Collectives()
    tensors = [tf.constant([1.0, 2.0]), tf.constant(3)]
    assert all(a is b for a, b in zip(alone.all_reduce(tensors), tensors, strict=True))
    assert alone.gather([4, 5]).tolist() == [[4, 5]]
    alone.barrier(1.0)
    alone.close()
