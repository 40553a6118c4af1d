"""Rows of Spark partitions reach programs over the agents' doors, evenly, and their answers come back in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.feed_access import TOKEN, feed_access
from tfos_magic.errors import FeedError
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.row_channels import RowChannels
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task.send_rows import RowsJob, ask_rows, deal_batches, deal_rows
from tfos_magic.feed.trainer.row_feed import RowFeed, leave
from tfos_magic.transport.messages import RowsHandle

pytestmark = pytest.mark.slow


class Nodes:
    """Two agents' doors, and the handles by which programs behind them take rows."""

    def __init__(self, folder: Path) -> None:
        self.channels = [RowChannels(), RowChannels()]
        self._servers = [
            FeedFlightServer("127.0.0.1", feed_access(), Spool(str(folder), None), channels=channels)
            for channels in self.channels
        ]
        for server, channels in zip(self._servers, self.channels, strict=True):
            server.start()
            channels.open("run")
        self.handles = [RowsHandle("run", server.endpoint.socket, TOKEN) for server in self._servers]

    def job(self, timeout: float = 10.0) -> RowsJob:
        endpoints = tuple(server.endpoint for server in self._servers)
        return RowsJob("run", "input", endpoints, (0, 1), feed_access(), timeout)

    def close(self) -> None:
        for server, channels in zip(self._servers, self.channels, strict=True):
            channels.close()
            server.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.close()


def taken(handle: RowsHandle, rows: list[Any]) -> threading.Thread:
    """A program that takes all rows."""

    def take() -> None:
        feed = RowFeed(handle, "input")
        for block in feed.blocks():
            rows.extend(block)
        feed.close()

    thread = threading.Thread(target=take, name="rows-program")
    thread.start()
    return thread


def test_rows_of_a_partition_are_dealt_out_evenly_and_in_their_order(nodes: Nodes) -> None:
    got: list[list[Any]] = [[], []]
    programs = [taken(handle, rows) for handle, rows in zip(nodes.handles, got, strict=True)]
    assert list(deal_rows(nodes.job(), 0, ((number, str(number)) for number in range(1001)))) == []
    assert list(deal_rows(nodes.job(), 1, iter([(1001, "1001")]))) == []
    for channels in nodes.channels:
        channels.end("run")
    for program in programs:
        program.join(10)
    assert [len(rows) for rows in got] == [501, 501]
    assert got[0] == [(number, str(number)) for number in range(0, 1001, 2)]
    assert got[1][:500] == [(number, str(number)) for number in range(1, 1001, 2)]


def test_batches_of_a_partition_are_dealt_out_as_if_they_were_one(nodes: Nodes) -> None:
    got: list[list[Any]] = [[], []]
    programs = [taken(handle, rows) for handle, rows in zip(nodes.handles, got, strict=True)]
    numbers = iter(range(12))
    batches = [pa.record_batch({"x": [next(numbers) for _ in range(size)]}) for size in (1, 2, 1, 4, 1, 2, 1)]
    job = replace(nodes.job(), ranks=(0, 1, 1))  # three have a turn, the second program two of them
    (told,) = deal_batches(job, batches)
    assert told.num_rows == 0
    for channels in nodes.channels:
        channels.end("run")
    for program in programs:
        program.join(10)
    assert [sorted(number for (number,) in rows) for rows in got] == [[0, 3, 6, 9], [1, 2, 4, 5, 7, 8, 10, 11]]


def test_answers_come_back_in_the_order_of_the_rows(nodes: Nodes) -> None:
    def answer(handle: RowsHandle) -> None:
        feed = RowFeed(handle, "input")
        for block in feed.blocks():
            if block:
                feed.note_given(len(block))
                feed.answer([number * 2 for number in block])
        feed.close()

    programs = [threading.Thread(target=answer, args=(handle,)) for handle in nodes.handles]
    for program in programs:
        program.start()
    for partition in (0, 1):
        assert list(ask_rows(nodes.job(), partition, range(300))) == [2 * number for number in range(300)]
    assert list(ask_rows(nodes.job(), 1, [])) == []
    for channels in nodes.channels:
        channels.end("run")
    for program in programs:
        program.join(10)


def test_answers_to_a_partition_of_which_enough_was_read_are_not_those_of_the_next(nodes: Nodes) -> None:
    """As ``take()`` of an RDD leaves its first partition."""

    def answer() -> None:
        feed = RowFeed(nodes.handles[0], "input")
        for block in feed.blocks():
            feed.note_given(len(block))
            for start in range(0, len(block), 7):
                feed.answer([number * 2 for number in block[start : start + 7]])
                time.sleep(0.02)
        feed.close()

    program = threading.Thread(target=answer, daemon=True)
    program.start()
    for begin in (0, 1000):
        asked = ask_rows(nodes.job(), 0, range(begin, begin + 200))
        assert [next(asked) for _ in range(3)] == [2 * begin, 2 * begin + 2, 2 * begin + 4]
        asked.close()
    assert list(ask_rows(nodes.job(), 0, range(300))) == [2 * number for number in range(300)]
    nodes.channels[0].end("run")
    program.join(10)


def test_more_answers_than_rows_are_an_error_of_the_program(nodes: Nodes) -> None:
    feed = RowFeed(nodes.handles[0], "input")
    feed.note_given(2)
    with pytest.raises(FeedError, match="got 3 results, but only 2 rows are unanswered"):
        feed.answer([1, 2, 3])
    feed.close()


def test_a_program_that_goes_on_with_fewer_answers_is_told_of_at_once(nodes: Nodes) -> None:
    def answer() -> None:
        feed = RowFeed(nodes.handles[0], "input")
        for block in feed.blocks():
            if block:
                feed.note_given(len(block))
                feed.answer(block[:9])
            else:
                feed.go_on()
        feed.close()

    program = threading.Thread(target=answer, daemon=True)
    program.start()
    with pytest.raises(FeedError, match="went on with 10 answers for the 11 rows of a partition"):
        list(ask_rows(nodes.job(), 0, range(11)))
    nodes.channels[0].end("run")
    program.join(10)


def test_a_program_that_never_reads_ends_the_feed_after_its_timeout(nodes: Nodes) -> None:
    begun = time.monotonic()
    (error,) = deal_rows(nodes.job(timeout=0.5), 0, range(10))
    assert "read no rows for 0.5 s (feed_timeout)" in error
    assert time.monotonic() - begun < 5


def test_rows_for_programs_that_have_ended_are_dropped_and_answers_are_missed(nodes: Nodes) -> None:
    for handle in nodes.handles:
        leave(handle)
    assert list(deal_rows(nodes.job(), 0, range(10))) == []
    with pytest.raises(FeedError, match="ended with 0 answers for the 10 rows"):
        list(ask_rows(nodes.job(), 0, range(10)))


def test_rows_of_another_run_are_no_ones(nodes: Nodes) -> None:
    for channels in nodes.channels:
        channels.release("run")
    (error,) = deal_rows(nodes.job(), 0, range(10))
    assert "has ended" in error
