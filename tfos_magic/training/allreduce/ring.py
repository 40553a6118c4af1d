"""TensorFlow's own collective operations: NCCL between GPUs, and a ring over gRPC elsewhere.

Small tensors are fused into buckets and large ones cut into pieces that travel in parallel, as Horovod's tensor fusion
and PyTorch's DDP buckets do (Sergeev and Del Balso 2018; Li et al. 2020).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfos_magic.errors import ClusterError
from tfos_magic.training.allreduce import among_zeros, mean_by_sum, place_of_rows

PIECE_BYTES = 1 << 20
MAX_PIECES = 4
GROUP_KEY = 1
_POWERS = 32
_PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
)
_PEER_WORDS = ("Collective ops is aborted", "RecvBuf", "Socket closed")


class RingWire:
    """``CollectiveReduceV2`` among ``size`` ranks whose TensorFlow servers know each other."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._next_key = 1
        self._eager_keys: dict[tuple[Any, ...], int] = {}
        self._aborted = False
        self._sent = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_sent")

    @property
    def name(self) -> str:
        return "TensorFlow's ring"

    @property
    def sent(self) -> int:
        return int(self._sent.numpy())

    @property
    def waited(self) -> float:
        """Zero: TensorFlow does not tell."""
        return 0.0

    @property
    def exchanged(self) -> float:
        """As :attr:`waited`."""
        return 0.0

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results: list[tf.Tensor] = [None] * len(tensors)
        known = [tf.cast(t, tf.float16) if t.dtype == tf.int8 else t for t in tensors]  # which holds integers to 2048
        for bucket in plan_buckets([(_nbytes(t), t.dtype.name) for t in known]):
            members = [known[i] for i in bucket]
            flat = members[0] if len(members) == 1 else tf.concat([tf.reshape(t, [-1]) for t in members], 0)
            summed = self._in_pieces(flat)
            parts = [summed] if len(members) == 1 else tf.split(summed, [tf.size(t) for t in members])
            for i, tensor, part in zip(bucket, members, parts, strict=True):
                results[i] = tf.cast(_reshaped(part, tensor), tensors[i].dtype)
        return results

    def mean(self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return mean_by_sum(self, tensors, weight, summed)

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        offset, total = place_of_rows(self, self._rank, self._size, tensors)
        return [self._sum_rows(tensor, offset, total) for tensor in tensors]

    def align(self) -> None:
        keys = self.sum([tf.one_hot(self._rank, self._size, self._next_key, 0, dtype=tf.int64)])[0]
        self._next_key = max(self._next_key, int(tf.reduce_max(keys)) + 1)

    def explain(self, error: Exception) -> str | None:
        if not isinstance(error, _PEER_ERRORS) or not any(words in str(error.message) for words in _PEER_WORDS):
            return None
        return "TensorFlow says: " + " ".join(str(error.message).split())[:300]

    def abort(self, reason: str) -> None:
        if not self._aborted:
            self._aborted = True
            eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)

    def close(self) -> None:
        self.abort(f"rank {self._rank} left")

    def _in_pieces(self, tensor: tf.Tensor) -> tf.Tensor:
        pieces = min(MAX_PIECES, _nbytes(tensor) // PIECE_BYTES)
        if pieces < 2:
            return self._reduce(tensor, self._key((tensor.dtype.name, *tensor.shape)))
        count = tensor.shape.num_elements()
        sizes = [count // pieces + (1 if i < count % pieces else 0) for i in range(pieces)]
        parts = tf.split(tf.reshape(tensor, [-1]), sizes)
        return tf.concat([self._reduce(p, self._key((p.dtype.name, *p.shape))) for p in parts], 0)

    def _sum_rows(self, tensor: tf.Tensor, offset: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        # An operation keeps the shape it first had, so each power of two has an operation of its own.
        power = tf.cast(tf.math.log(tf.cast(tf.maximum(total, 1), tf.float64)) / math.log(2.0), tf.int32) + 1
        key = self._key((tensor.dtype.name, "rows", *tensor.shape[1:]), _POWERS) + power
        return self._reduce(among_zeros(tensor, offset, tf.bitwise.left_shift(1, power)), key)[:total]

    def _reduce(self, tensor: tf.Tensor, key: Any) -> tf.Tensor:
        # Reduce-scatter and all-gather each send all shares but one.
        passed = 2 * (self._size - 1) * tf.size(tensor, tf.int64) * tensor.dtype.size // self._size
        self._sent.assign_add(passed)
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=self._size,
            group_key=GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="auto",
        )

    def _key(self, signature: tuple[Any, ...], count: int = 1) -> int:
        """Name an operation, or ``count`` of them in a row. In a graph each needs a name of its own; eager calls run
        one by one and reuse theirs."""
        if not tf.executing_eagerly():
            return self._new_key(count)
        if signature not in self._eager_keys:
            self._eager_keys[signature] = self._new_key(count)
        return self._eager_keys[signature]

    def _new_key(self, count: int) -> int:
        self._next_key += count
        return self._next_key - count


def plan_buckets(tensors: Sequence[tuple[int, str]]) -> list[list[int]]:
    """Group tensors, given as (bytes, dtype name), into buckets of one dtype.

    They have ``PIECE_BYTES`` or more, but for the last of each dtype.

    A large tensor stands alone, so that it is not copied; the order of the tensors is kept within a dtype.
    """
    buckets: list[list[int]] = []
    filling: dict[str, tuple[list[int], int]] = {}
    for index, (size, dtype) in enumerate(tensors):
        if size >= PIECE_BYTES:
            buckets.append([index])
            continue
        members, held = filling.get(dtype, ([], 0))
        members.append(index)
        filling[dtype] = (members, held + size)
        if held + size >= PIECE_BYTES:
            buckets.append(filling.pop(dtype)[0])
    return buckets + [members for members, _ in filling.values()]


def _nbytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _reshaped(part: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    part = tf.reshape(part, tf.shape(like))
    part.set_shape(like.shape)
    return part


def serve(rank: int, addresses: Sequence[str], timeout: float) -> None:
    """Start this process's server of TensorFlow's and wait until those of its peers answer.

    Raises :class:`ClusterError` that names the ranks which did not answer within ``timeout`` seconds.
    """
    _start_server(rank, addresses)
    _await_peers(rank, addresses, timeout)


def _start_server(rank: int, addresses: Sequence[str]) -> None:
    context = eager_context.context()
    context.configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
    server = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec({"worker": list(addresses)}).as_cluster_def(),
        default_session_config=context.config,
        job_name="worker",
        task_index=rank,
        protocol="grpc",
    )
    # The port is held for us by a socket of our agent; TensorFlow shares a port only when told to.
    os.environ["TF_GRPC_REUSE_PORT"] = "true"
    try:
        context.enable_collective_ops(server)
        context.ensure_initialized()
    except (tf.errors.OpError, RuntimeError) as error:
        raise ClusterError(
            f"rank {rank} cannot serve TensorFlow on {addresses[rank]}: {error}. If TensorFlow was already used in "
            "this process, a new trainer process is needed; otherwise the port is taken: restart the cluster."
        ) from error


def _await_peers(rank: int, addresses: Sequence[str], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    missing = {peer: "" for peer in range(len(addresses)) if peer != rank}
    while missing and (left := deadline - time.monotonic()) > 0:
        for peer in list(missing):
            try:
                eager_context.context().check_collective_ops_peer_health(
                    f"/job:worker/replica:0/task:{peer}", max(1, int(min(left, 1.0) * 1000))
                )
                del missing[peer]
            except tf.errors.OpError as error:
                missing[peer] = str(error.message).splitlines()[0][:200]
        if missing:
            time.sleep(0.05)
    if missing:
        peers = ", ".join(f"rank {peer} at {addresses[peer]} ({why})" for peer, why in missing.items())
        raise ClusterError(
            f"rank {rank} waited {timeout:g} s for its peers; no answer from {peers}. Check that these trainers run "
            "and that no firewall blocks traffic between executors."
        )
