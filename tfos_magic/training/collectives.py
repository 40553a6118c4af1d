"""Sums over ranks: the one place where training talks to its peers.

Everything the strategies need is built from :meth:`Collectives.all_reduce`, which travels on a wire: memory that the
ranks of a host share, TCP between hosts, or, where it was asked for, TensorFlow's own ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.python.eager import context as eager_context

from tfos_magic.errors import ClusterError
from tfos_magic.training.allreduce import GroupTransport, PeerLost
from tfos_magic.training.allreduce.arrays import ArrayWire
from tfos_magic.training.allreduce.group import Meeting, meet
from tfos_magic.training.allreduce.ring import RingWire, serve
from tfos_magic.training.watchdog import Watchdog
from tfos_magic.transport.tls import TlsPeers

END_SECONDS = 24 * 3600.0  # other ranks may do by themselves what they like, such as saving a model, for long
_END_SHAPE = (1009,)  # of nothing else that is summed, so that this meeting is taken for no other


class Collectives:
    """Collective operations of one rank among ``size``, on ``wire``. Without one it only knows them.

    ``timeout`` is the number of seconds that one operation waits for its peers. All ranks must call the same
    operations, with tensors of the same shapes and dtypes, in the same order.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        timeout: float = 300.0,
        wire: GroupTransport | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._wire, self._meeting = wire, meeting
        self._lost = False
        self._watchdog = Watchdog(self._expire) if size > 1 else None

    @property
    def wire(self) -> GroupTransport:
        if self._wire is None:
            raise ClusterError(f"rank {self.rank} is not connected to its peers. Restart the cluster.")
        return self._wire

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks, memory that they share included."""
        return 0 if self._wire is None else self._wire.sent

    @property
    def waited(self) -> float:
        """Seconds that this rank has waited for others to come to an operation, or for servers to answer."""
        return 0.0 if self._wire is None else self._wire.waited

    @property
    def exchanged(self) -> float:
        """Seconds that operations took once all had come to them."""
        return 0.0 if self._wire is None else self._wire.exchanged

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sum each tensor over all ranks; the same bits come back on every rank.

        ``tensors`` may have any shapes and mix float16, bfloat16, float32, float64, int8, int32 and int64. Works both
        eagerly and inside ``tf.function``. Raises :class:`ClusterError` (eagerly) when a peer is lost or late.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.size == 1 or not tensors:
            return list(tensors)
        with self.waiting("an all-reduce"):
            return self.wire.sum(tensors)

    def mean(
        self, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Average float tensors over ranks by ``weight``, a float32 scalar; then come the sums of ``summed``.

        As :meth:`all_reduce` otherwise. A rank with weight zero does not count, even where its values are not finite.
        """
        if self.size == 1:
            return [*tensors, *summed]
        with self.waiting("an all-reduce"):
            return self.wire.mean(tensors, weight, summed)

    def begin_mean(
        self, owner: int, tensors: Sequence[tf.Tensor], weight: tf.Tensor, summed: Sequence[tf.Tensor] = ()
    ) -> list[tf.TensorSpec]:
        """Begin a :meth:`mean` that goes on while this rank computes; gives what :meth:`end_mean` is to be asked for.

        Each ``owner``, a number, can have one under way. Any other operation waits for their end.
        """
        if not isinstance(self.wire, ArrayWire):
            raise ClusterError(f"averaging cannot overlap with training over {self.wire.name}: omit --overlap.")
        self.wire.begin_mean(owner, tensors, weight, summed)
        return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in [*tensors, *summed]]

    def end_mean(self, owner: int, like: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
        """The result of the ``owner``'s :meth:`begin_mean`, waited for."""
        assert isinstance(self.wire, ArrayWire)
        with self.waiting("an average"):
            return self.wire.end_mean(owner, like)

    def concat(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenate tensors over ranks along their first axis, in the order of ranks.

        All ``tensors`` of a rank have one length; lengths may differ between ranks and from call to call. The other
        axes must be the same everywhere.
        """
        if self.size == 1 or not tensors:
            return list(tensors)
        with self.waiting("rows of all ranks"):
            return self.wire.concat(tensors)

    def broadcast(self, tensors: Sequence[tf.Tensor], root: int = 0) -> list[tf.Tensor]:
        """Give every rank the tensors of rank ``root``: a sum to which the others add zeros."""
        if self.size == 1:
            return list(tensors)
        return self.all_reduce([t if self.rank == root else tf.zeros_like(t) for t in tensors])

    def gather(self, values: Sequence[int]) -> np.ndarray:
        """Give every rank the integers of all ranks, eagerly: an int64 array of shape (size, len(values))."""
        return np.asarray(self.concat([tf.constant(np.array([values], np.int64))])[0])

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has come here; raises :class:`ClusterError` after ``timeout`` seconds."""
        if self.size == 1:
            return
        with self.waiting("a barrier", timeout):
            self.wire.sum([tf.ones((), tf.int32)])

    @property
    def lost(self) -> bool:
        """Whether a peer was lost or late, after which none is met again."""
        return self._lost

    def finish(self) -> None:
        """Meet the other ranks at the end of a cell, so that none waits for a step that another will not take.

        Raises :class:`ClusterError` where one does, there too. Nothing is left to meet for once a peer was lost.
        """
        if self.size == 1 or self.lost:
            return
        try:
            with self.waiting("the end of the cell", END_SECONDS):
                self.wire.sum([tf.zeros(_END_SHAPE, tf.int32)])
        except ClusterError as error:
            raise ClusterError(
                f"rank {self.rank} reached the end of the cell, but another rank did not: it ended, or is in a step "
                "that this rank does not take. Give every worker the same number of steps: tfos.shard(dataset) splits "
                f"a dataset that way, and tfos.allreduce lets workers agree on a number. {error.__cause__}"
            ) from error

    def pair(self, other: int, timeout: float) -> Collectives:
        """A group of this rank and one ``other``, who calls this as well, beside this one; both are to close it.

        Raises :class:`ClusterError` where the other does not come within ``timeout`` seconds.
        """
        if self._meeting is None:
            raise ClusterError(f"rank {self.rank} joined late and has not met its peers. Restart the cluster.")
        exchange = self._meeting.pair(self.rank, other, timeout)
        return Collectives(int(self.rank > other), 2, wire=ArrayWire(exchange))

    def align(self) -> None:
        """Make the ranks agree on what numbers the operations to come, should one have traced a graph more often."""
        if self.size > 1:
            with self.waiting("the other ranks to start"):
                self.wire.align()

    def abort(self, reason: str) -> None:
        """Make what waits, here and on peers that wait for this rank, fail now. No collective works afterwards.

        May be called from any thread.
        """
        if self._wire is not None:
            self._wire.abort(reason)

    def close(self) -> None:
        """Leave the group. A process forms one group in its life, so this is for its end."""
        if self._wire is not None:
            self._wire.close()
        if self._watchdog is not None:
            self._watchdog.close()

    @contextmanager
    def waiting(self, what: str, seconds: float | None = None) -> Iterator[None]:
        """Run operations that wait for peers, for at most ``seconds`` (``timeout`` when not given).

        Errors that are about lost or late peers become :class:`ClusterError`; others stay as they are.
        """
        if self._watchdog is None:
            yield
            return
        limit = self.timeout if seconds is None else seconds
        with self.explaining(what), self._watchdog.watching(what, limit):
            yield

    @contextmanager
    def explaining(self, what: str) -> Iterator[None]:
        """Turn errors that are about lost or late peers into :class:`ClusterError`; others stay as they are."""
        try:
            yield
        except (tf.errors.OpError, PeerLost) as error:
            cause = self._wire.explain(error) if self._wire is not None else None
            if cause is None:
                raise
            self._lost = True
            raise ClusterError(
                f"rank {self.rank} waited for {what} with all {self.size} ranks, but at least one did not answer: it "
                f"died, stopped early or is stuck. Check the other workers' output, then run the cell again. {cause}"
            ) from error

    def _expire(self, what: str, seconds: float) -> None:
        self.abort(f"no answer within {seconds:g} s while rank {self.rank} waited for {what}")


def form_cluster(
    rank: int,
    addresses: Sequence[str],
    *,
    timeout: float = 60.0,
    threads: int | None = None,
    share: bool = True,
    secret: str = "",
    nccl: bool = False,
    tls: TlsPeers | None = None,
) -> Collectives:
    """Join this process to its peers and return when all of them answered.

    ``addresses`` holds ``host:port`` by rank. ``threads`` is the number of threads one operation may use, for hosts
    that trainers share. Ranks on one host share memory, unless ``share`` is false; only ranks that know ``secret`` are
    let in. With ``tls`` what crosses hosts is encrypted.

    With ``nccl`` TensorFlow's own collectives are used instead, whose server listens on all interfaces and lets
    anyone in: whoever reaches its port can read and write files as this process. To be called once in a process, before
    TensorFlow ran any operation. With one address nothing is listened on. Raises :class:`ClusterError` that names the
    ranks which did not answer within ``timeout`` seconds, and for ``nccl`` where a rank has no GPU.
    """
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    if len(addresses) == 1:
        return Collectives()
    _let_idle_threads_sleep()
    meeting = Meeting(addresses, secret, share, tls)
    arrays = ArrayWire(meet(rank, addresses, secret, timeout, share, tls))
    wire: GroupTransport = arrays
    if nccl:
        all_have_gpus = _all_have_gpus(arrays)
        arrays.close()
        if not all_have_gpus:
            raise ClusterError("nccl needs a GPU for each worker, and one has none: omit it, or use --gpus 1.")
        serve(rank, addresses, timeout)
        wire = RingWire(rank, len(addresses))
    collectives = Collectives(rank, len(addresses), wire=wire, meeting=meeting)
    collectives.barrier(timeout)
    return collectives


def _let_idle_threads_sleep() -> None:
    """TensorFlow's threads spin for a while when they have nothing to do, and take the cores of other ranks by that."""
    config = ConfigProto()
    config.experimental.disable_thread_spinning = True
    eager_context.context()._config = config


def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def _all_have_gpus(wire: ArrayWire) -> bool:
    return not wire.sum_arrays(np.array([not has_gpu()], np.int64))[0].any()
