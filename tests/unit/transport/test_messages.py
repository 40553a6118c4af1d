"""The wire format: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tfos_magic.columns.selection import Selection
from tfos_magic.errors import ProtocolError
from tfos_magic.transport.messages import (
    FeedUse,
    Heartbeat,
    Message,
    Progress,
    RunCell,
    RunFinished,
    SpoolHandle,
    StopRun,
    StrategyOptions,
    StreamHandle,
    decode,
    encode,
)

MESSAGES: list[Message] = [
    Heartbeat(2, 3, {"feed": 4}),
    Progress("r", 0, "train", 1, 3, 5, 10, 320, {"loss": 0.25}),
    RunCell("r", "x = 1", "<run 1>", "sync", 7, ["x"], payload=b"\x80\x05"),
    RunCell(
        "r",
        "x = 1",
        "<run 1>",
        "sync",
        7,
        [],
        feeds={
            "train": FeedUse(
                "f", 32, Selection(["a"]), mark=[9], spool=SpoolHandle("/f", "00", "s", [[0, 8, 0, 2]], [], 1, 2)
            ),
            "live": FeedUse("g", 8, Selection(label="y"), stream=StreamHandle("l", "s", 2, live=True)),
        },
        options=StrategyOptions(bucket_mb=2, compression="float16", outer_learning_rate=0.5),
    ),
    RunFinished("r", 1, "error", {"kind": "ValueError"}, clean=False),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


def _header(**fields: object) -> list[bytes]:
    return [json.dumps(fields).encode(), b""]


def _cell_with(feeds: object) -> list[bytes]:
    cell = {"run_id": "r", "source": "", "filename": "f", "strategy": "sync", "seed": 1, "outputs": []}
    return _header(type="RunCell", **cell, feeds=feeds)


BAD_FRAMES = {
    "no frame": [],
    "one frame": [b"{}"],
    "three frames": [b"{}", b"", b""],
    "random bytes": [b"\x93NUMPY\xff", b""],
    "JSON that is no object": [b"[1]", b""],
    "no type": _header(run_id="r"),
    "a type there is not": _header(type="Evil"),
    "the base class": _header(type="Message"),
    "a missing field": _header(type="StopRun"),
    "a field too many": _header(type="StopRun", run_id="r", extra=1),
    "a wrong type": _header(type="StopRun", run_id=3),
    "a truth value for a number": _header(
        type="TrainerExited", generation=True, rank=0, exit_code=0, signal=0, output=""
    ),
    "a part that is no object": _cell_with({"f": 3}),
    "a part with a field too many": _cell_with({"f": {"feed_id": "f", "batch_size": 2, "evil": 1}}),
    "a part with a field of a wrong type": _cell_with({"f": {"feed_id": "f", "batch_size": "2"}}),
    "a payload smuggled into the header": _header(type="StopRun", run_id="r", payload="x"),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_what_is_no_message_is_refused(case: str) -> None:
    with pytest.raises(ProtocolError):
        decode(BAD_FRAMES[case])


def test_a_header_that_is_longer_than_anybody_may_send_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    header, payload = encode(StopRun("r"))
    monkeypatch.setattr("tfos_magic.transport.messages.message.MAX_HEADER_BYTES", len(header))
    assert decode([header, payload]) == StopRun("r")
    with pytest.raises(ProtocolError, match="too long"):
        decode([header + b" ", payload])


def test_numbers_of_numpy_are_sent_as_numbers() -> None:
    progress = Progress("run", 0, "train", np.int64(1), np.int64(2), 3, 4, 5, {"loss": np.float32(0.5)})
    (sent,) = [decode(encode(progress))]
    assert sent == Progress("run", 0, "train", 1, 2, 3, 4, 5, {"loss": 0.5})
