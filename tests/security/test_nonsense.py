"""Nonsense of peers that have the key: it is dropped, logged once for each kind, and nobody else is any the worse."""

from __future__ import annotations

import json
import queue
import random
import threading
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest
import zmq

from tests.security.conftest import PARAMETERS, SECRET, Served, dial
from tests.security.nonsense import KINDS, NESTED, SEED, filled, mutated, nonsense
from tfos_magic.errors import ClusterError, ProtocolError
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Identity
from tfos_magic.transport.messages import Heard, Heartbeat, Message, StopRun, decode, encode
from tfos_magic.transport.redelivery import Redelivery

NOBODY = Identity("worker-0.tfos", "", "", "")


def test_the_messages_that_are_mutated_are_all_there_are_and_good() -> None:
    assert len(KINDS) > 35
    for kind in KINDS:
        message = filled(kind)
        assert decode(encode(message)) == message


def test_ten_thousand_mutated_messages_are_messages_or_refused() -> None:
    kinds = set()
    for frames in nonsense():
        try:
            assert isinstance(decode(frames), Message)
        except ProtocolError as error:
            kinds.add(error.kind)
    assert 5 < len(kinds) < 30, kinds


def test_ten_thousand_mutated_messages_of_an_agent_leave_the_control_socket_as_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def handle(peer: bytes, message: Message) -> None:
        if isinstance(message, Heartbeat) and message.trainer_rss == SEED:
            inbox.put(message)
        elif isinstance(message, StopRun):
            raise RuntimeError("of the handler")

    server = ControlServer("127.0.0.1", 0, handle)
    chance, delivery = random.Random(SEED), Redelivery()
    try:
        with (
            zmq.Context() as context,
            dial(context, int(server.endpoint.rpartition(":")[2]), server.issue("agent")) as agent,
        ):
            for number, frames in enumerate(nonsense()):
                if number % 200 == 0:  # so that no more than these are on their way
                    _expect(agent, inbox)
                if number == 200:
                    before = psutil.Process().memory_info().rss
                envelope = chance.randbytes(16) if number % 50 == 0 else delivery.passing([])[0]
                agent.send_multipart([envelope, *frames] if number % 77 else [*frames, b""])
            _expect(agent, inbox)
            grown = psutil.Process().memory_info().rss - before
            assert grown < 50 << 20
    finally:
        server.close()
    said = [record.getMessage() for record in caplog.records if record.name == "tfos_magic.cluster"]
    assert sum("malformed" in text for text in said) < 30
    assert sum("while handling StopRun" in text for text in said) == 1
    assert len(said) == len(set(said))


def _expect(agent: zmq.Socket[bytes], inbox: queue.SimpleQueue[Message]) -> None:
    agent.send_multipart(Redelivery().passing(encode(Heartbeat(SEED))))
    assert inbox.get(timeout=60) == Heartbeat(SEED)


def test_an_agent_drops_what_it_cannot_read_and_hears_the_next(caplog: pytest.LogCaptureFixture) -> None:
    peers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    server = ControlServer("127.0.0.1", 0, lambda peer, message: peers.put(peer))
    keys = server.issue("job")
    client = ControlClient(
        AgentConfig(server.endpoint, keys.server_public, keys.public, keys.secret, "token", NOBODY, job="job")
    )
    try:
        client.send(Heartbeat())
        peer = peers.get(timeout=10)
        for _ in range(3):
            server._outbox.put((peer, [NESTED, b""], True))
        server.send(peer, StopRun("r"))
        heard: list[Message | None] = []
        while StopRun("r") not in heard:
            assert client.socket.poll(10_000)
            heard.append(client.receive())
        assert [each for each in heard if each is not None] == [Heard(), StopRun("r")]
    finally:
        client.close()
        server.close()
    assert caplog.text.count("malformed command") == 1


@pytest.mark.soak
def test_nonsense_of_a_worker_leaves_a_parameter_server_as_it_was(served: Callable[[str], Served]) -> None:
    from tfos_magic.training.parameter_server.client import ServerGroup
    from tfos_magic.training.parameter_server.trainer_keys import keys_of
    from tfos_magic.transport.curve import secure_client

    server = served(PARAMETERS)
    address = f"127.0.0.1:{server.address[1]}"
    chance = random.Random(SEED)
    said = {"kind": "sum", "run": "r", "rank": 0, "number": 1, "place": [1, 0, 1], "arrays": [["float32", [2]]]}
    with zmq.Context() as context, context.socket(zmq.DEALER) as worker:
        worker.linger = 0
        secure_client(worker, keys_of(SECRET, "server")[0], *keys_of(SECRET, "worker"))
        worker.connect(f"tcp://{address}")
        worker.send_multipart([NESTED])
        for kind in ("open", "setup", "push", "pull", "sum", "join", "leave"):
            for _ in range(100):
                frames = mutated(chance, [json.dumps({**said, "kind": kind}).encode(), bytes(8)])
                worker.send_multipart(frames or [b""])
        while worker.poll(1000):
            worker.recv_multipart()
    group = ServerGroup(0, 1, [address], SECRET, start_seconds=20)
    group.close()


@pytest.mark.parametrize("words", [NESTED, b"\xff", b"7", b"[7]", b'{"x": 1}'])
def test_a_rank_that_says_nonsense_where_all_meet_is_named(words: bytes) -> None:
    from tfos_magic.training.allreduce import handshake
    from tfos_magic.training.allreduce.rendezvous import Star

    with handshake.listen("127.0.0.1:0") as listener:
        addresses = ["{}:{}".format(*listener.getsockname()), "127.0.0.1:1"]

        def speak() -> None:
            star = Star(1, addresses, listener, b"key", 10)
            with suppress(OSError):
                star._peers[0].sendall(len(words).to_bytes(4, "little") + words)
                star._peers[0].recv(1)
            star.close()

        thread = threading.Thread(target=speak, name="tfos-test-rank")
        thread.start()
        star = Star(0, addresses, listener, b"key", 10)
        with pytest.raises(ClusterError, match="rank 1 sent an un"):
            star.gather({"nonce": "x"})
        star.close()
        thread.join(10)
