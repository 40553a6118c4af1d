"""Rows of any Python objects between Spark tasks and the program of a trainer, in blocks, and its answers to them.

A channel has a name, that of a run, and queues by name, as TensorFlowOnSpark's nodes have. Tasks put blocks into a
queue and wait until they are taken; its program takes them, and may answer each row, in their order. Nothing here looks
into a block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tfos_magic.errors import FeedError, TFOSError

QUEUE_BYTES = 16 << 20
LOOK_SECONDS = 0.5
KEPT_FAILURES = 64

Cancelled = Callable[[], bool]
"""Whether the caller at the other end of a Flight call has gone."""


@dataclass(frozen=True)
class ChannelBlock:
    """``rows`` rows as bytes, of a task that waits for answers where it says so.

    One without rows is the end of a partition. Of answers, only the last ``rows`` count.
    """

    rows: int
    data: bytes = b""
    asks: bool = False


class RowQueue:
    """A bounded queue of blocks, and of the answers to one partition at a time. Thread-safe.

    Who waits does so as long as the other side does something in each ``timeout`` seconds.
    """

    def __init__(self) -> None:
        self._blocks: deque[ChannelBlock] = deque()
        self._answers: deque[ChannelBlock] = deque()
        self._bytes = self._put = self._taken = 0
        self._moved = 0.0
        self._unanswered = self._owed = 0
        self._asking = self._is_open = self._is_short = self._ended = self._closed = False
        self._failure: TFOSError | None = None
        self._changed = threading.Condition()

    def put(self, block: ChannelBlock, timeout: float, cancelled: Cancelled) -> None:
        """Add a block as soon as there is room; once the program reads no more, it is dropped."""
        with self._changed:
            self._wait(lambda: self._has_room(len(block.data)), timeout, cancelled)
            if not self._closed:
                self._add(block)

    def await_taken(self, timeout: float, cancelled: Cancelled) -> None:
        """Return when the program has all blocks that were put before, or reads no more."""
        with self._changed:
            due = self._put
            self._wait(lambda: self._taken >= due, timeout, cancelled)

    @contextmanager
    def asking(self, timeout: float, cancelled: Cancelled) -> Iterator[None]:
        """In the block the caller alone puts rows that ask, and gets the answers: each partition in its turn."""
        with self._changed:
            self._wait(lambda: not self._asking, timeout, cancelled)
            if self._asking:
                raise FeedError("the partition was abandoned, or the program ended, before its turn came")
            self._asking, self._is_short = True, False
        try:
            yield
        finally:
            with self._changed:
                self._asking = False
                self._give_up_rest()
                self._changed.notify_all()

    def _give_up_rest(self) -> None:
        """Nobody waits for answers that have not come, as of a partition of which ``take()`` has had enough."""
        waiting = [block for block in self._blocks if block.asks and block.rows]
        self._blocks = deque(block for block in self._blocks if not (block.asks and block.rows))
        self._bytes -= sum(len(block.data) for block in waiting)
        self._taken += len(waiting)
        self._answers.clear()
        self._owed = self._unanswered
        if self._is_open and not self._closed:  # so that no batch of the program reaches into the next partition
            self._add(ChannelBlock(0, asks=True))

    def answers(self, rows: int, timeout: float, cancelled: Cancelled) -> Iterator[ChannelBlock]:
        """Give the answers to so many ``rows``. Raises :class:`FeedError` where the program ends before."""
        left = rows
        while left > 0:
            with self._changed:
                given = (
                    f"the program gave {rows - left} of {rows} answers, and no more for {timeout:g} s (feed_timeout)"
                )
                self._wait(lambda: bool(self._answers) or self._is_short, timeout, cancelled, given)
                if not self._answers:
                    raise FeedError(
                        f"the program {'went on' if self._is_short else 'ended'} with {rows - left} answers for the "
                        f"{rows} rows of a partition: it must call batch_results() with one for each row, until "
                        "should_stop()"
                    )
                answer = self._answers.popleft()
            left -= answer.rows
            yield answer
        if left < 0:
            raise FeedError(f"the program gave {rows - left} answers for the {rows} rows of a partition")

    def take(self, cancelled: Cancelled) -> ChannelBlock | None:
        """The next block, as soon as there is one; None at the end of all."""
        with self._changed:
            while not self._blocks:
                if self._ended or self._closed or cancelled():
                    return None
                self._changed.wait(LOOK_SECONDS)
            block = self._blocks.popleft()
            self._bytes -= len(block.data)
            self._taken += 1
            self._unanswered += block.rows if block.asks else 0
            self._note_move()
            return block

    def answer(self, block: ChannelBlock) -> None:
        """Take answers of the program; none at all stand for those that do not come, for it has gone on.

        They are dropped where the task that asked has ended.
        """
        with self._changed:
            if not block.rows:
                self._is_short = bool(self._unanswered and not self._owed)
            given = block.rows or self._owed or self._unanswered
            dropped = min(given, self._owed)
            self._owed -= dropped
            self._unanswered = max(0, self._unanswered - given)
            if self._asking and block.rows > dropped:
                self._answers.append(ChannelBlock(block.rows - dropped, block.data))
            self._note_move()

    def end(self) -> None:
        """No more rows will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, reason: TFOSError) -> None:
        """End those who send and who reads: tasks raise the reason."""
        with self._changed:
            self._failure, self._ended = self._failure or reason, True
            self._changed.notify_all()

    def close(self) -> None:
        """The program reads no more: what waits, and what comes, is dropped."""
        with self._changed:
            self._closed = True
            self._blocks.clear()
            self._bytes, self._taken = 0, self._put
            self._changed.notify_all()

    def _add(self, block: ChannelBlock) -> None:
        self._blocks.append(block)
        self._bytes += len(block.data)
        self._put += 1
        if block.asks:
            self._is_open = bool(block.rows)
        self._changed.notify_all()

    def _note_move(self) -> None:
        self._moved = time.monotonic()
        self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= QUEUE_BYTES

    def _wait(self, done: Callable[[], bool], timeout: float, cancelled: Cancelled, else_: str = "") -> None:
        """Wait for ``done``, or until the program reads no more, with the lock held; ``else_`` is said after it."""
        started = time.monotonic()
        while not done():
            if self._failure is not None:
                raise _again(self._failure)
            if self._closed or cancelled():
                return
            if time.monotonic() - max(started, self._moved) > timeout:
                self._failure = FeedError(  # for all who send: they need not wait as long
                    else_
                    or (
                        f"the program read no rows for {timeout:g} s (feed_timeout), while {self._put - self._taken} "
                        "blocks of rows wait for it: check what it waits for, or raise the limit"
                    )
                )
            self._changed.wait(LOOK_SECONDS)


class RowChannels:
    """The channels of an agent, by name. Thread-safe."""

    def __init__(self) -> None:
        self._channels: dict[str, dict[str, RowQueue]] = {}
        self._left: set[str] = set()
        self._ended: dict[str, TFOSError | None] = {}
        self._failures: dict[str, TFOSError] = {}
        self._lock = threading.Lock()

    def open(self, channel: str) -> None:
        with self._lock:
            self._channels.setdefault(channel, {})

    def queue(self, channel: str, name: str) -> RowQueue:
        """A queue of a channel, made when it is first asked for. Raises :class:`FeedError` for a channel that ended."""
        with self._lock:
            if channel not in self._channels:
                ended = FeedError("the program that these rows were for has ended: run it again")
                raise _again(self._failures.get(channel, ended))
            queue = self._channels[channel].setdefault(name, RowQueue())
        if channel in self._left:
            queue.close()
        if channel in self._ended:
            _end(queue, self._ended[channel])
        return queue

    def end(self, channel: str, error: TFOSError | None = None) -> bool:
        """Say that no more rows come, for an ``error`` if one is given, which those get that come later; False for an
        unknown channel."""
        if error is not None:
            self._failures[channel] = error
            while len(self._failures) > KEPT_FAILURES:
                self._failures.pop(next(iter(self._failures)))
        if (queues := self._queues(channel)) is None:
            return False
        self._ended[channel] = error
        for queue in queues:
            _end(queue, error)
        return True

    def leave(self, channel: str) -> None:
        """The program of a channel has ended: what its queues have, and get, is dropped."""
        self._left.add(channel)
        for queue in self._queues(channel) or ():
            queue.close()

    def release(self, channel: str) -> bool:
        """Forget a channel, and let nobody wait for it; False for an unknown one."""
        queues = self._queues(channel)
        with self._lock:
            self._channels.pop(channel, None)
            self._left.discard(channel)
            self._ended.pop(channel, None)
        for queue in queues or ():
            queue.close()
        return queues is not None

    def close(self) -> None:
        for channel in list(self._channels):
            self.release(channel)

    def _queues(self, channel: str) -> list[RowQueue] | None:
        with self._lock:
            queues = self._channels.get(channel)
            return None if queues is None else list(queues.values())


def _again(error: TFOSError) -> TFOSError:
    """An error that several raise: each has one of its own."""
    return type(error)(str(error))


def _end(queue: RowQueue, error: TFOSError | None) -> None:
    if error is None:
        queue.end()
    else:
        queue.fail(error)
