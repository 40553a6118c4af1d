"""What a program finds on its node: rows that Spark feeds it, paths, and names of old that say what to write."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from tfos_magic.feed.trainer.row_feed import RowFeed
from tfos_magic.transport.messages import RowsHandle

logger = logging.getLogger(__name__)
_SCHEMES = (
    *("abfs", "abfss", "adl", "file", "gs", "hdfs", "oss", "s3", "s3a", "s3n"),
    *("swift", "viewfs", "wasb", "wasbs", "webhdfs"),
)


def hdfs_path(ctx: Any, path: str) -> str:
    """Give ``path`` with the scheme of the default file system, below the working directory where it is relative."""
    if path.split("://")[0] in _SCHEMES and "://" in path:
        return path
    if path.startswith("/"):
        return f"{ctx.defaultFS}{path}"
    if ctx.defaultFS.startswith(("hdfs://", "viewfs://")):
        return f"{ctx.defaultFS}/user/{getpass.getuser()}/{path}"
    if ctx.defaultFS.startswith("file://"):
        return f"{ctx.defaultFS}{ctx.working_dir}/{path}"
    logger.warning("%s has a scheme for which relative paths such as %s are not supported", ctx.defaultFS, path)
    return f"{ctx.defaultFS}/{path}"


class RowsManager:
    """What ``ctx.mgr`` is: the way to the queues of this node's rows."""

    def __init__(self, handle: RowsHandle | None) -> None:
        self._handle = handle
        self._queues: dict[str, _Queue] = {}
        self._unread: set[str] = set()

    def queue(self, name: str) -> _Queue:
        """The queue of that name, opened when it is first asked for."""
        if self._handle is None:
            raise RuntimeError("this program is not fed rows: run it with input_mode=InputMode.SPARK")
        if name not in self._queues:
            self._queues[name] = _Queue(RowFeed(self._handle, name))
            self._unread.add(name)
        return self._queues[name]

    def note_read(self, name: str) -> None:
        """A program has read all rows of that queue, or said that it wants no more."""
        self._unread.discard(name)

    def note_unread(self, notice: Callable[[str], None]) -> None:
        """Tell a ``notice``, where the program has returned, of queues that it left before their end."""
        for name in sorted(self._unread):
            notice(
                f"The program returned before it had read {name!r} to its end: rows that still come for this node "
                "are dropped. Read until DataFeed.should_stop(), or call DataFeed.terminate() if that is intended."
            )

    def close(self) -> None:
        for queue in self._queues.values():
            queue.feed.close()


class _Queue:
    """The rows of a queue, which all its :class:`DataFeed` take from, each going on where another one has stopped."""

    def __init__(self, feed: RowFeed) -> None:
        self.feed = feed
        self._blocks: Iterator[list[Any]] = feed.blocks()
        self._rows: list[Any] = []
        self._next = 0
        self.is_past_end = False

    @property
    def is_empty(self) -> bool:
        """Whether another block has to be read."""
        return self._next == len(self._rows)

    def take(self, most: int) -> list[Any]:
        """The next rows of the block that was read."""
        taken = self._rows[self._next : self._next + most]
        self._next += len(taken)
        return taken

    def read(self) -> bool:
        """Read a block, an empty one at the end of a partition; False where no more come."""
        block = next(self._blocks, None)
        self._rows, self._next, self.is_past_end = block or [], 0, not block
        return block is not None


class DataFeed:
    """The rows of ``TFCluster.train`` and ``TFCluster.inference`` on this node, and the answers to them.

    ``input_mapping`` (column: tensor) makes batches dicts of columns by tensor. With ``train_mode=False`` no batch
    reaches over the end of a partition. They are taken by one thread.
    """

    def __init__(
        self,
        mgr: RowsManager,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.mgr, self.train_mode = mgr, train_mode
        self.done_feeding = False
        self.input_tensors = [tensor for _, tensor in sorted(input_mapping.items())] if input_mapping else None
        self._queue, self._name = mgr.queue(qname_in), qname_in

    def next_batch(self, batch_size: int) -> Any:
        """Take the next ``batch_size`` rows, fewer at the end: a list of rows, or a dict of columns by tensor."""
        rows: list[Any] = []
        while len(rows) < batch_size and not self.done_feeding:
            if self._queue.is_empty and self._is_at_an_end(bool(rows)):
                break
            rows += self._queue.take(batch_size - len(rows))
        self._queue.feed.note_given(len(rows))
        if self.input_tensors is None:
            return rows
        return {tensor: [row[place] for row in rows] for place, tensor in enumerate(self.input_tensors)}

    def should_stop(self) -> bool:
        """Whether all rows have come."""
        return self.done_feeding

    def batch_results(self, results: Iterable[Any]) -> None:
        """Answer the rows of the last batch, each with one of ``results``. Raises ``FeedError`` for more of them."""
        if answers := list(results):
            self._queue.feed.answer(answers)

    def terminate(self) -> None:
        """Take no more: what is still fed is dropped."""
        self.done_feeding = True
        self.mgr.note_read(self._name)
        self._queue.feed.close()

    def _is_at_an_end(self, begun: bool) -> bool:
        """Take the next block; True where a batch that was ``begun`` ends with its partition, and at the end of all."""
        if self._queue.is_past_end and not self.train_mode:
            self._queue.feed.go_on()
        self.done_feeding = not self._queue.read()
        if self.done_feeding:
            self.mgr.note_read(self._name)
        return self.done_feeding or (self._queue.is_past_end and begun and not self.train_mode)


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> NoReturn:
    """Gone with TensorFlow 1."""
    raise RuntimeError("start_cluster_server belongs to TensorFlow 1: use tf.distribute.MultiWorkerMirroredStrategy()")


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Any) -> NoReturn:
    """Gone with TensorFlow 1."""
    raise RuntimeError("sessions belong to TensorFlow 1: use compat.export_saved_model(model, export_dir, is_chief)")


def release_port(ctx: Any) -> None:
    """Free the port that was reserved for this node, for a server of the program's own."""
    held, ctx.tmp_socket = ctx.tmp_socket, None
    if held is None:
        logger.warning("release_port() was called, and no port is reserved")
    else:
        held.close()
