"""A relay between agents and kernel: what is said comes through, and nobody else is heard."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
import zmq

from tests.unit.control import Inbox, config_of
from tfos_magic.cluster.via_spark.tunnel import Tunnel
from tfos_magic.spark.liveness import ExecutorLiveness
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.messages import CheckpointPart, Heartbeat, Output, TrainerExited
from tfos_magic.worker.relay.line import END, Line, exchange, pack, unpack
from tfos_magic.worker.relay.relay import Relay

pytestmark = pytest.mark.slow


class Place:
    """A relay in a thread of this process, and the kernel's line to it."""

    def __init__(self, patience: float = 5.0) -> None:
        server_public, secret = zmq.curve_keypair()
        public, own = zmq.curve_keypair()
        self.relay = Relay("127.0.0.1", secret, public, patience, ExecutorLiveness(os.getpid()))
        self.line = Line(self.relay.line, server_public, public, own)
        self.thread = threading.Thread(target=self.relay.serve, name="tfos-relay")
        self.thread.start()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.thread.join(10)
    assert not made.thread.is_alive()


@pytest.fixture
def lost() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


@pytest.fixture
def tunnel(place: Place, server: ControlServer, lost: queue.SimpleQueue[str]) -> Iterator[Tunnel]:
    made = Tunnel(exchange, place.line, server.endpoint, lost.put)
    yield made
    assert made.close(10)


def _client(place: Place, server: ControlServer) -> ControlClient:
    return ControlClient(config_of(server, place.relay.endpoint))


def _until(done: Callable[[], object], client: ControlClient, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        if client.monitor.poll(20):
            client.note_connection()


def test_pieces_come_out_as_they_went_in() -> None:
    pieces = [(1, b""), (7, b"abc"), (1 << 40, bytes(1000)), (0, b"")]
    assert unpack(pack(pieces)) == pieces
    assert unpack(pack([])) == []


def test_messages_of_any_size_go_both_ways_through_a_relay(
    place: Place, server: ControlServer, tunnel: Tunnel, inbox: Inbox
) -> None:
    client = _client(place, server)
    large = os.urandom(9 << 20)
    client.send(Output("run", 0, "stdout", "first"))
    client.send(TrainerExited(1, 0, 0, 9, "x" * (1 << 20)))
    _until(lambda: not client.out_of_reach, client)
    peer, first = inbox.get(timeout=20)
    assert first == Output("run", 0, "stdout", "first")
    assert inbox.get(timeout=20)[1] == TrainerExited(1, 0, 0, 9, "x" * (1 << 20))
    server.send(peer, CheckpointPart("run", 0, "c", 0, 1, payload=large))
    assert client.socket.poll(20_000)
    got = None
    while got is None and client.socket.poll(20_000):
        got = client.receive()
    assert isinstance(got, CheckpointPart)
    assert got.payload == large
    client.close()


def test_an_exchange_that_is_done_again_brings_nothing_twice_and_fetches_the_same(place: Place) -> None:
    where = urlsplit(place.relay.endpoint)
    with socket.create_connection((where.hostname, where.port)) as agent:
        agent.sendall(b"hello")
        first = exchange(place.line, 1, b"")
        assert first is not None
        assert unpack(first)[0] == (1, b"")
        assert exchange(place.line, 1, b"") == first
        for _ in range(2):
            second = exchange(place.line, 2, pack([(1, b"welcome")]))
        agent.settimeout(0.3)
        assert agent.recv(100) == b"welcome"
        with pytest.raises(TimeoutError):
            agent.recv(100)
        said = b"".join(data for _, data in [*unpack(first), *unpack(second or b"")])
        assert said == b"hello"
        assert exchange(place.line, 3, pack([(END, b"")])) is not None


def test_a_stranger_with_another_key_is_not_answered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfos_magic.worker.relay.line.ANSWER_SECONDS", 0.5)
    public, secret = zmq.curve_keypair()
    stranger = Line(place.line.endpoint, place.line.server_public, public, secret)
    assert exchange(stranger, 1, pack([(END, b"")])) is None
    assert place.thread.is_alive()
    assert exchange(place.line, 1, pack([(END, b"")])) == b""


def test_a_relay_that_nobody_asks_ends_by_itself() -> None:
    place = Place(patience=0.2)
    place.thread.join(5)
    assert not place.thread.is_alive()


def test_a_relay_that_is_gone_is_told_once(server: ControlServer, lost: queue.SimpleQueue[str]) -> None:
    place = Place(patience=0.5)
    tunnel = Tunnel(lambda line, number, packed: None, place.line, server.endpoint, lost.put)
    assert lost.get(timeout=5) == "it does not answer"
    assert tunnel.close(5)
    assert lost.empty()
    place.thread.join(10)


def test_an_agent_is_cut_off_where_the_control_socket_ends_its_connection(
    place: Place, server: ControlServer, tunnel: Tunnel, inbox: Inbox
) -> None:
    where = urlsplit(place.relay.endpoint)
    with socket.create_connection((where.hostname, where.port)) as stranger:
        stranger.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03" + b"x" * 80)
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    client = _client(place, server)
    client.send(Heartbeat(3))
    assert inbox.get(timeout=20)[1] == Heartbeat(3)
    client.close()
