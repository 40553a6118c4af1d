"""Sums over ranks: the one place where training talks to its peers.

Everything the strategies need is built from :meth:`Collectives.all_reduce`. It runs on TensorFlow's own collective
ops (ring all-reduce over gRPC, as in ``MultiWorkerMirroredStrategy``); another wire replaces this module alone. Small
tensors are fused into buckets and large ones cut into pieces that travel in parallel, as Horovod's tensor fusion and
PyTorch's DDP buckets do (Sergeev and Del Balso 2018; Li et al. 2020).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from tfos_magic.errors import ClusterError
from tfos_magic.training.watchdog import Watchdog

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


class Collectives:
    """Collective operations of one rank among ``size``.

    ``timeout`` is the number of seconds that one operation waits for its peers. All ranks must call the same
    operations, with tensors of the same shapes and dtypes, in the same order.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, timeout: float = 300.0) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._next_key = 1
        self._eager_keys: dict[tuple[Any, ...], int] = {}
        self._aborted = False
        self._watchdog = Watchdog(self._expire) if size > 1 else None

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum each tensor over all ranks; the same bits come back on every rank.

        ``tensors`` may have any shapes and mix float16, bfloat16, float32, float64, int32 and int64. Works eagerly and
        inside ``tf.function``. Raises :class:`ClusterError` (eagerly) when a peer is lost or late.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.size == 1 or not tensors:
            return list(tensors)
        with self.waiting("an all-reduce"):
            return self._fused(tensors)

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenate tensors over ranks along their first axis, in the order of ranks.

        All ``tensors`` of a rank have one length; lengths may differ between ranks and from call to call. The other
        axes must be the same everywhere.
        """
        if self.size == 1 or not tensors:
            return list(tensors)
        with self.waiting("rows of all ranks"):
            return self._concat(tensors)

    def _concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        lengths = self.all_reduce([tf.one_hot(self.rank, self.size, tf.shape(tensors[0])[0], 0, dtype=tf.int32)])[0]
        total, offset = tf.reduce_sum(lengths), tf.reduce_sum(lengths[: self.rank])
        # An operation keeps the shape it first had, so each power of two has an operation of its own.
        power = tf.cast(tf.math.log(tf.cast(tf.maximum(total, 1), tf.float64)) / math.log(2.0), tf.int32) + 1
        room = tf.bitwise.left_shift(1, power) - offset - lengths[self.rank]
        results = []
        for tensor in tensors:
            padding = [[offset, room], *([0, 0] for _ in tensor.shape[1:])]
            key = self._key((tensor.dtype.name, "concat", *tensor.shape[1:]), _POWERS) + power
            results.append(self._reduce(tf.pad(tensor, padding), key)[:total])
        return results

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int = 0) -> list[tf.Tensor]:
        """Give every rank the tensors of rank ``root``: a sum to which the others add zeros."""
        if self.size == 1:
            return list(tensors)
        return self.all_reduce([t if self.rank == root else tf.zeros_like(t) for t in tensors])

    def gather(self, values: Sequence[int]) -> np.ndarray:
        """Give every rank the integers of all ranks, eagerly: an int64 array of shape (size, len(values))."""
        table = np.zeros((self.size, len(values)), np.int64)
        table[self.rank] = values
        return np.asarray(self.all_reduce([tf.constant(table)])[0])

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has come here; raises :class:`ClusterError` after ``timeout`` seconds."""
        if self.size == 1:
            return
        with self.waiting("a barrier", timeout):
            self._fused([tf.ones((), tf.int32)])

    def align(self) -> None:
        """Make the ranks agree on the keys of the operations to come, should one have traced a graph more often."""
        if self.size > 1:
            self._next_key = max(self._next_key, int(self.gather([self._next_key]).max()) + 1)

    def abort(self, reason: str) -> None:
        """Make what waits, here and on peers that wait for this rank, fail now. No collective works afterwards.

        May be called from any thread.
        """
        if self.size > 1 and not self._aborted:
            self._aborted = True
            eager_context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)

    def close(self) -> None:
        """Leave the group. A process forms one group in its life, so this is for its end."""
        self.abort(f"rank {self.rank} left")
        if self._watchdog is not None:
            self._watchdog.close()

    @contextmanager
    def waiting(self, what: str, seconds: float | None = None) -> Iterator[None]:
        """Run operations that wait for peers, for at most ``seconds`` (``timeout`` when not given).

        Errors of TensorFlow that are about lost or late peers become :class:`ClusterError`; others stay as they are.
        """
        if self._watchdog is None:
            yield
            return
        limit = self.timeout if seconds is None else seconds
        try:
            with self._watchdog.watching(what, limit):
                yield
        except _PEER_ERRORS as error:
            if not any(words in str(error.message) for words in _PEER_WORDS):
                raise
            cause = " ".join(str(error.message).split())[:300]
            raise ClusterError(
                f"rank {self.rank} waited for {what} with all {self.size} ranks, and at least one did not answer: it "
                "died, stopped early or is stuck. Look at the other workers' output, then run the cell again. "
                f"TensorFlow says: {cause}"
            ) from error

    def _expire(self, what: str, seconds: float) -> None:
        self.abort(f"no answer within {seconds:g} s while rank {self.rank} waited for {what}")

    def _fused(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        results: list[tf.Tensor] = [None] * len(tensors)
        for bucket in plan_buckets([(_nbytes(t), t.dtype.name) for t in tensors]):
            members = [tensors[i] for i in bucket]
            flat = members[0] if len(members) == 1 else tf.concat([tf.reshape(t, [-1]) for t in members], 0)
            summed = self._in_pieces(flat)
            parts = [summed] if len(members) == 1 else tf.split(summed, [tf.size(t) for t in members])
            for i, tensor, part in zip(bucket, members, parts, strict=True):
                results[i] = _reshaped(part, tensor)
        return results

    def _in_pieces(self, tensor: tf.Tensor) -> tf.Tensor:
        pieces = min(MAX_PIECES, _nbytes(tensor) // PIECE_BYTES)
        if pieces < 2:
            return self._reduce(tensor, self._key((tensor.dtype.name, *tensor.shape)))
        count = tensor.shape.num_elements()
        sizes = [count // pieces + (1 if i < count % pieces else 0) for i in range(pieces)]
        parts = tf.split(tf.reshape(tensor, [-1]), sizes)
        return tf.concat([self._reduce(p, self._key((p.dtype.name, *p.shape))) for p in parts], 0)

    def _reduce(self, tensor: tf.Tensor, key: Any) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=self.size,
            group_key=GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
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


def form_cluster(
    rank: int, addresses: Sequence[str], *, timeout: float = 60.0, threads: int | None = None
) -> Collectives:
    """Join this process to its peers and return when all of them answered.

    ``addresses`` holds ``host:port`` by rank. ``threads`` is the number of threads one operation may use, for hosts
    that trainers share. To be called once in a process, before TensorFlow ran any operation. With one address nothing
    is listened on. Raises :class:`ClusterError` that names the ranks which did not answer within ``timeout`` seconds.
    """
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    if len(addresses) == 1:
        return Collectives()
    _start_server(rank, addresses)
    _await_peers(rank, addresses, timeout)
    collectives = Collectives(rank, len(addresses))
    collectives.barrier(timeout)
    return collectives


def plan_buckets(tensors: Sequence[tuple[int, str]]) -> list[list[int]]:
    """Group tensors, given as (bytes, dtype name), into buckets of one dtype and at least ``PIECE_BYTES`` each.

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
            f"rank {rank} cannot serve TensorFlow on {addresses[rank]}: {error}. If TensorFlow was used in this "
            "process before, a new trainer process is needed; otherwise the port is taken: start the cluster again."
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
            f"rank {rank} waited {timeout:g} s for its peers; no answer from {peers}. Check that those trainers run "
            "and that a firewall lets the executors reach each other."
        )


def _nbytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _reshaped(part: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    part = tf.reshape(part, tf.shape(like))
    part.set_shape(like.shape)
    return part
