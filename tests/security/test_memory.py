"""What a stranger can make the control socket and the parameter servers keep: next to nothing."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
import zmq

from tests.security.conftest import (
    CONTROL,
    FEEDS,
    GREETING,
    HUGE,
    PARAMETERS,
    Served,
    answered_by_control,
    answered_by_feeds,
    answered_by_parameters,
    dial,
    poured,
)
from tests.soak import every
from tfos_magic.errors import ProtocolError
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.half_open import shut
from tfos_magic.transport.messages import Message, OutputPart, RunCell, decode, encode
from tfos_magic.transport.multipart import FRAME_BYTES, cut, joined
from tfos_magic.transport.redelivery import Redelivery

KINDS = [(CONTROL, answered_by_control), (PARAMETERS, answered_by_parameters), (FEEDS, answered_by_feeds)]
NAMES = ["control", "parameters", "feeds"]

_CLAIMS = {
    "command": GREETING + b"\x06" + HUGE,
    "message": GREETING + b"\x02" + HUGE,
    "part": GREETING + b"\x03" + HUGE,
    "no greeting": b"\xff" + HUGE + b"\x00",
    "old greeting": b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00\x00" + b"\x02" + HUGE,
}


@pytest.mark.parametrize(("program", "answered"), KINDS, ids=NAMES)
def test_a_stranger_who_claims_gigabytes_is_turned_away_before_a_part_of_them_is_kept(
    served: Callable[[str], Served], program: str, answered: Callable[[Served, float], bool]
) -> None:
    server = served(program)
    before = server.memory_mb
    for claim, opening in _CLAIMS.items():
        with server.connect() as stranger:
            stranger.sendall(opening)
            sent = poured(stranger, 256 << 20)
        assert sent < 64 << 20, claim  # the systems' buffers take some
        assert server.memory_mb - before < 20, claim
    assert answered(server, 20)


@pytest.mark.soak
@pytest.mark.parametrize(("program", "answered"), every(3, KINDS), ids=NAMES)
@pytest.mark.usefixtures("many_descriptors")
def test_a_thousand_idle_connections_cost_nothing_and_keep_nobody_out(
    served: Callable[[str], Served], program: str, answered: Callable[[Served, float], bool]
) -> None:
    server = served(program)
    before = server.memory_mb
    with ExitStack() as opened:
        for number in range(1000):
            stranger = opened.enter_context(server.connect())
            if number % 2:
                stranger.sendall(GREETING)
        assert server.busy(3) < 0.3
        assert server.memory_mb - before < 50
        assert answered(server, 8)


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES])
def test_parts_of_any_size_come_back_from_their_frames(size: int) -> None:
    parts = [bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"", b"y" * size]
    frames = cut(parts)
    assert max(map(len, frames)) <= FRAME_BYTES
    assert [bytes(part) for part in joined(frames)] == parts


def test_a_part_without_an_end_is_no_message() -> None:
    with pytest.raises(ProtocolError, match="cut short"):
        joined([b"x" * FRAME_BYTES])


def test_large_messages_go_both_ways_over_the_control_socket() -> None:
    inbox: queue.SimpleQueue[tuple[bytes, Message]] = queue.SimpleQueue()
    server = ControlServer("127.0.0.1", 0, lambda peer, message: inbox.put((peer, message)))
    large = np.random.default_rng(1).bytes(40 << 20)
    try:
        with (
            zmq.Context() as context,
            dial(context, int(server.endpoint.rpartition(":")[2]), server.issue("agent")) as agent,
        ):
            agent.maxmsgsize = FRAME_BYTES + 64
            delivery = Redelivery()
            up = OutputPart("r", 0, 0, 0, len(large), len(large), large)
            agent.send_multipart(delivery.numbered(encode(up)), copy=False)
            peer, message = inbox.get(timeout=20)
            assert message == up
            down = RunCell("r", "x" * (1 << 20), "<cell>", "sync", 0, [], payload=large)
            server.send(peer, down)
            assert agent.poll(20_000)
            taken = delivery.take(agent.recv_multipart())
            assert taken is not None
            assert decode(taken) == down
    finally:
        server.close()


def test_large_arrays_and_many_of_them_go_to_a_parameter_server(served: Callable[[str], Served]) -> None:
    from tests.security.conftest import SECRET
    from tfos_magic.errors import TrainingError
    from tfos_magic.training.parameter_server.client import ServerGroup

    server = served(PARAMETERS)
    group = ServerGroup(0, 1, [f"127.0.0.1:{server.address[1]}"], SECRET, start_seconds=20)
    try:
        arrays = [np.zeros(10 << 20, np.float32), *(np.zeros(3, np.float32) for _ in range(20_000))]
        group.ask_first({"kind": "open", "run": "r", "size": 1, "max_staleness": 1}, "a run")
        header = {"kind": "sum", "run": "r", "place": [1, 0, 1]}
        _, totals = group.ask_first(header, "a sum", arrays)
        assert [total.shape for total in totals] == [array.shape for array in arrays]
        with pytest.raises(TrainingError, match="has no request"):
            group.ask_first({"kind": "nonsense", "run": "r"}, "nothing")
    finally:
        group.close()


def test_what_a_stranger_left_behind_is_closed_by_its_address_not_its_number() -> None:
    """A descriptor that was closed meanwhile, and is another file's now, stays open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shut(ours.fileno(), 1)
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"
