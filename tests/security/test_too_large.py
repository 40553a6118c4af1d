"""What is too large or cannot be read is said of a cell, and ends no process by which it would be run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import sessions
from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.errors import MessageTooLarge, WorkerError
from tfos_magic.processes.child_process import Link
from tfos_magic.transport.messages import (
    MAX_HEADER_BYTES,
    CellLeft,
    Display,
    Message,
    Notice,
    Output,
    RunCell,
    RunFinished,
    StartTrainer,
    StopRun,
    TrainerReady,
    decode,
    encode,
    encode_fitting,
    refusal,
)

LARGE = "x" * (MAX_HEADER_BYTES + 1)
LETTERS = "aé€😀"


class Watch(Observer):
    """Keeps what the run showed and printed."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.printed = ""
        self.restarts = 0

    def update(self, state: Any) -> None:
        self.restarts = state.restarts

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        self.shown.append(data)

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        self.printed += text


@pytest.fixture(scope="module")
def cluster() -> Iterator[TFCluster]:
    def made(session: SparkSession) -> Iterator[TFCluster]:
        with TFCluster(session, workers=1) as cluster:
            yield cluster

    for session in sessions.local_session(2):
        yield from made(session)


@pytest.mark.soak
def test_a_display_too_large_to_travel_is_cut_and_says_so(cluster: TFCluster) -> None:
    watch, pid = Watch(), _pid(cluster)
    cell = """
class Page:
    def _repr_html_(self): return "x" * (70 << 20)
    def __repr__(self): return "a page"
Page()
"""
    cluster.run(cell, observer=watch)
    (shown,) = watch.shown
    assert shown.keys() == {"text/plain"}
    assert shown["text/plain"].startswith("a page\n[not shown as it is: a message (Display) of 70 MB is too large")
    assert (watch.restarts, _pid(cluster)) == (0, pid)


@pytest.mark.soak
def test_an_error_too_large_to_travel_is_cut_and_is_the_cells_own(cluster: TFCluster) -> None:
    watch, pid = Watch(), _pid(cluster)
    with pytest.raises(WorkerError, match="the beginning") as caught:
        cluster.run("raise ValueError('the beginning' + 'x' * (70 << 20) + 'the end')", observer=watch)
    assert caught.value.kind == "ValueError"
    assert "letters left out" in str(caught.value)
    assert len(str(caught.value)) < 1 << 20
    assert (watch.restarts, _pid(cluster)) == (0, pid)


@pytest.mark.soak
def test_a_trainer_that_cannot_be_read_fails_the_cell_and_is_no_memory_trouble(cluster: TFCluster) -> None:
    watch = Watch()
    cell = """
import sys
import time
frame = sys._getframe()
while not hasattr(frame.f_locals.get("self"), "_link"):
    frame = frame.f_back
link = frame.f_locals["self"]._link
with link._sending:
    link._connection.send_bytes(b"[" * 200_000)
    link._connection.send_bytes(b"")
time.sleep(60)
"""
    with pytest.raises(WorkerError, match="sent a message that cannot be read") as caught:
        cluster.run(cell, observer=watch)
    assert caught.value.kind == "ProtocolError"
    assert "SIGKILL" not in str(caught.value)
    assert watch.restarts == 0
    assert cluster.run("answer = 42", outputs=["answer"])["answer"] == 42


@pytest.mark.soak
def test_letters_that_fall_apart_between_two_reads_are_whole_again(cluster: TFCluster) -> None:
    watch = Watch()
    cell = f"import os\nfor start in range(4):\n    os.write(1, b'x' * start + {LETTERS!r}.encode() * 30_000 + b'\\n')"
    cluster.run(cell, observer=watch)
    assert "\ufffd" not in watch.printed
    assert watch.printed.count(LETTERS) == 4 * 30_000


def _pid(cluster: TFCluster) -> int:
    cluster.wait_ready()
    return cluster.workers[0].pid


CUT: list[Message] = [
    Display("r", 0, {"text/html": LARGE, "text/plain": "short"}),
    Display("r", 0, {"text/plain": LARGE}),
    Notice("r", 0, LARGE),
    Output("r", 0, "stdout", LARGE),
    TrainerReady(1, 0, 1, error=LARGE),
    RunFinished("r", 0, "error", {"kind": "ValueError", "message": LARGE, "traceback": LARGE, "line": 1}),
    RunFinished("r", 0, "ok", missing=[LARGE]),
    RunFinished("r", 0, "ok", left=CellLeft(environment={"A": LARGE})),
]


@pytest.mark.parametrize("message", CUT, ids=lambda message: type(message).__name__)
def test_what_people_read_is_cut_where_it_is_too_large(message: Message) -> None:
    with pytest.raises(MessageTooLarge, match="64 MB"):
        encode(message)
    frames = encode_fitting(message)
    assert sum(map(len, frames)) < 1 << 20
    assert type(decode(frames)) is type(message)


def test_what_nobody_reads_is_refused_where_it_is_too_large() -> None:
    with pytest.raises(MessageTooLarge, match="RunCell"):
        encode_fitting(RunCell("r", LARGE, "<cell>", "sync", 0, []))


def test_an_order_that_leads_to_an_error_is_answered() -> None:
    end = refusal(RunCell("r", "", "<cell>", "sync", 0, []), 1, KeyError("feed"))
    assert isinstance(end, RunFinished)
    assert (end.run_id, end.rank, end.status, end.error["kind"]) == ("r", 1, "error", "KeyError")
    ready = refusal(StartTrainer(3, 1, []), 1, ValueError("no port"))
    assert isinstance(ready, TrainerReady)
    assert (ready.generation, ready.error) == (3, "ValueError: no port")
    assert refusal(StopRun("r"), 1, ValueError()) is None


def test_a_trainer_drops_what_it_cannot_read_and_hears_the_next(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = Pipe()

    def send() -> None:
        for _ in range(3):
            ours.send_bytes(b"[" * 200_000)
            ours.send_bytes(b"")
        Link(ours).send(StopRun("r"))
        ours.close()

    thread = threading.Thread(target=send, name="tfos-test-agent")
    thread.start()
    assert list(Link(theirs).messages()) == [StopRun("r")]
    thread.join(10)
    theirs.close()
    assert caplog.text.count("malformed command") == 1
