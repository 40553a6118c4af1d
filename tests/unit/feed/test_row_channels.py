"""Rows between tasks and a program: bounded, in turn, and never waited for in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tfos_magic.errors import FeedError
from tfos_magic.feed.agent import row_channels
from tfos_magic.feed.agent.row_channels import ChannelBlock, RowChannels, RowQueue

pytestmark = pytest.mark.slow


def going() -> bool:
    return False


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, name="rows-test")
    thread.start()
    return thread


def test_rows_come_in_their_order_with_the_ends_of_partitions_and_of_all() -> None:
    queue = RowQueue()
    blocks = [ChannelBlock(2, b"a"), ChannelBlock(1, b"b"), ChannelBlock(0)]
    for block in blocks:
        queue.put(block, 1, going)
    queue.end()
    assert [queue.take(going) for _ in range(4)] == [*blocks, None]


def test_a_task_waits_while_the_queue_is_full_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_channels, "QUEUE_BYTES", 4)
    queue = RowQueue()
    queue.put(ChannelBlock(1, b"1234"), 1, going)
    with pytest.raises(FeedError, match=r"read no rows for 0\.2 s \(feed_timeout\), while 1 blocks"):
        queue.put(ChannelBlock(1, b"5"), 0.2, going)
    with pytest.raises(FeedError, match="read no rows"):  # and who comes next need not wait
        queue.put(ChannelBlock(1, b"5"), 60, going)


def test_a_task_goes_on_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_channels, "QUEUE_BYTES", 4)
    queue = RowQueue()
    queue.put(ChannelBlock(1, b"1234"), 1, going)
    putting = in_thread(lambda: queue.put(ChannelBlock(1, b"5"), 5, going))
    assert queue.take(going) == ChannelBlock(1, b"1234")
    putting.join(5)
    assert queue.take(going) == ChannelBlock(1, b"5")


def test_time_in_which_the_program_takes_rows_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_channels, "LOOK_SECONDS", 0.05)
    queue = RowQueue()
    for _ in range(6):
        queue.put(ChannelBlock(1, b"x"), 1, going)

    def take_slowly() -> None:
        for _ in range(6):
            time.sleep(0.1)
            queue.take(going)

    taking = in_thread(take_slowly)
    queue.await_taken(0.4, going)
    taking.join(5)


def test_what_is_put_after_the_program_reads_no_more_is_dropped() -> None:
    queue = RowQueue()
    queue.put(ChannelBlock(1, b"x"), 1, going)
    queue.close()
    queue.put(ChannelBlock(1, b"y"), 1, going)
    queue.await_taken(1, going)
    assert queue.take(going) is None


def test_a_partition_is_asked_after_another() -> None:
    queue, order = RowQueue(), []

    def ask(name: str) -> None:
        with queue.asking(5, going):
            queue.put(ChannelBlock(1, name.encode(), asks=True), 1, going)
            queue.put(ChannelBlock(0, asks=True), 1, going)
            order.extend(block.data for block in queue.answers(1, 5, going))

    tasks = [in_thread(lambda name=name: ask(name)) for name in "abc"]
    for _ in tasks:
        block = queue.take(going)
        assert block is not None
        queue.answer(ChannelBlock(1, block.data.upper()))
        assert queue.take(going) == ChannelBlock(0, asks=True)
    for task in tasks:
        task.join(5)
    assert sorted(order) == [b"A", b"B", b"C"]


def asked(queue: RowQueue, *blocks: tuple[int, bytes]) -> None:
    for rows, data in blocks:
        queue.put(ChannelBlock(rows, data, asks=True), 1, going)


@pytest.mark.parametrize(("given", "how"), [(0, "ended"), (2, ""), (1, "went on")])
def test_too_few_answers_and_too_many_are_errors(given: int, how: str) -> None:
    queue, rows = RowQueue(), 3 if how else 1
    words = f"{how} with {given} answers for the 3 rows" if how else "gave 2 answers for the 1 rows"
    with queue.asking(1, going):
        asked(queue, (rows, b"x"), (0, b""))
        queue.take(going)
        if given:
            queue.answer(ChannelBlock(given))
        if how == "ended":
            queue.close()
        if how == "went on":
            queue.answer(ChannelBlock(0))
        with pytest.raises(FeedError, match=words):
            list(queue.answers(rows, 1, going))


def test_answers_that_do_not_come_are_counted() -> None:
    queue = RowQueue()
    with queue.asking(1, going):
        asked(queue, (5, b"x"))
        queue.answer(ChannelBlock(2))
        with pytest.raises(FeedError, match=r"gave 2 of 5 answers, and no more for 0\.1 s"):
            list(queue.answers(5, 0.1, going))


def test_answers_that_nobody_waits_for_any_more_are_not_those_of_the_next_rows() -> None:
    queue = RowQueue()
    with queue.asking(1, going):
        asked(queue, (3, b"old"), (4, b"older"))
        queue.take(going)
        queue.answer(ChannelBlock(1, b"of old"))
        next(queue.answers(7, 1, going))
    assert queue.take(going) == ChannelBlock(0, asks=True), "the rest of the rows was to be dropped, and a batch to end"
    with queue.asking(1, going):
        asked(queue, (2, b"new"), (0, b""))
        assert queue.take(going) == ChannelBlock(2, b"new", asks=True)
        queue.answer(ChannelBlock(1, b"of old"))
        queue.answer(ChannelBlock(2, b"one of old, one of new"))
        queue.answer(ChannelBlock(1, b"of new"))
        assert [(block.rows, block.data) for block in queue.answers(2, 1, going)] == [
            (1, b"one of old, one of new"),
            (1, b"of new"),
        ]
    queue.take(going)
    with queue.asking(1, going):
        asked(queue, (1, b"last"))
        queue.answer(ChannelBlock(0))  # of a program that goes on has nothing to do with rows that it has not taken
        queue.take(going)
        queue.answer(ChannelBlock(1, b"of last"))
        assert [block.data for block in queue.answers(1, 1, going)] == [b"of last"]


def test_answers_to_rows_that_a_program_trains_on_are_not_kept() -> None:
    queue = RowQueue()
    queue.put(ChannelBlock(2, b"rows"), 1, going)
    queue.take(going)
    queue.answer(ChannelBlock(2, b"answers"))
    with queue.asking(1, going):
        asked(queue, (1, b"x"))
        queue.take(going)
        queue.answer(ChannelBlock(1, b"X"))
        assert [block.data for block in queue.answers(1, 1, going)] == [b"X"]


def test_who_gives_up_before_his_turn_leaves_the_other_alone() -> None:
    queue = RowQueue()
    with queue.asking(1, going):
        with pytest.raises(FeedError, match="abandoned"), queue.asking(1, lambda: True):
            pass
        asked(queue, (1, b"x"))
        queue.take(going)
        queue.answer(ChannelBlock(1, b"X"))
        assert [block.data for block in queue.answers(1, 1, going)] == [b"X"]


def test_a_queue_that_is_opened_after_the_end_has_ended() -> None:
    channels = RowChannels()
    channels.open("run")
    channels.end("run")
    assert channels.queue("run", "input").take(going) is None


def test_who_waits_hears_why_no_rows_come() -> None:
    channels = RowChannels()
    channels.open("run")
    queue = channels.queue("run", "input")
    assert channels.end("run", FeedError("the node has gone"))
    with pytest.raises(FeedError, match="the node has gone"):
        queue.await_taken(1, going) or queue.put(ChannelBlock(1, b"x"), 1, going) or queue.await_taken(1, going)


@pytest.mark.parametrize("opened", [True, False])
def test_rows_that_come_after_a_program_has_failed_get_its_error(opened: bool) -> None:
    channels = RowChannels()
    if opened:
        channels.open("run")
    channels.end("run", FeedError("no module named beside"))
    channels.release("run")
    with pytest.raises(FeedError, match="no module named beside"):
        channels.queue("run", "input")
    for number in range(row_channels.KEPT_FAILURES):
        channels.end(f"run {number}", FeedError("later"))
    with pytest.raises(FeedError, match="has ended: run it again"):
        channels.queue("run", "input")


def test_a_program_that_has_ended_takes_all_that_comes_and_a_run_that_has_nothing() -> None:
    channels = RowChannels()
    channels.open("run")
    channels.leave("run")
    late = channels.queue("run", "later")
    late.put(ChannelBlock(1, b"x"), 1, going)
    late.await_taken(1, going)
    assert channels.release("run")
    with pytest.raises(FeedError, match="has ended"):
        channels.queue("run", "input")
