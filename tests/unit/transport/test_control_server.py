"""The control socket: heard with the key, deaf without it, gone when closed."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest
import zmq

from tests.unit.control import Inbox
from tfos_magic.errors import ClusterError
from tfos_magic.transport.control_server import TOGETHER, AgentKeys, ControlServer
from tfos_magic.transport.messages import Heard, Heartbeat, Message, Reconnected, StopRun, TrainerExited, decode, encode
from tfos_magic.transport.redelivery import Redelivery

pytestmark = pytest.mark.slow


def _dial(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: AgentKeys, identity: bytes = b"agent-1"
) -> zmq.Socket[bytes]:
    agent = context.socket(zmq.DEALER)
    agent.linger = 0
    agent.curve_serverkey, agent.curve_publickey, agent.curve_secretkey = keys.server_public, keys.public, keys.secret
    agent.routing_id = identity
    agent.connect(endpoint)
    return agent


def _receive(agent: zmq.Socket[bytes], delivery: Redelivery) -> Message:
    """The next message for an agent; it must come."""
    while agent.poll(5000):
        if (frames := delivery.take(agent.recv_multipart())) is not None:
            return decode(frames)
    raise AssertionError("nothing came within 5 s")


def test_messages_go_both_ways_with_the_key(server: ControlServer, inbox: Inbox) -> None:
    with zmq.Context() as context, _dial(context, server.endpoint, server.issue("agent")) as agent:
        delivery = Redelivery()
        agent.send_multipart(delivery.passing(encode(Heartbeat(5))))
        peer, message = inbox.get(timeout=5)
        assert message == Heartbeat(5)
        server.send(peer, StopRun("r"))
        assert _receive(agent, delivery) == Heard()
        assert _receive(agent, delivery) == StopRun("r")


def test_a_flood_of_messages_is_heard_whole_and_in_order(server: ControlServer, inbox: Inbox) -> None:
    with zmq.Context() as context, _dial(context, server.endpoint, server.issue("agent")) as agent:
        delivery = Redelivery()
        agent.setsockopt(zmq.SNDHWM, 0)
        for number in range(5 * TOGETHER + 1):
            agent.send_multipart(delivery.numbered(encode(TrainerExited(0, number, 0, 0, ""))))
        came = [inbox.get(timeout=10)[1] for _ in range(5 * TOGETHER + 1)]
        assert came == [TrainerExited(0, number, 0, 0, "") for number in range(5 * TOGETHER + 1)]


def test_what_an_agent_missed_comes_when_it_reconnects_and_nothing_comes_twice(
    server: ControlServer, inbox: Inbox
) -> None:
    delivery = Redelivery()
    with zmq.Context() as context:
        with _dial(context, server.endpoint, server.issue("agent")) as agent:
            agent.send_multipart(delivery.numbered(encode(TrainerExited(1, 0, 0, 9, ""))))
            peer, _ = inbox.get(timeout=5)
            server.send(peer, StopRun("first"))
            assert _receive(agent, delivery) == StopRun("first")
        server.send(peer, StopRun("second"))
        lost = delivery.numbered(encode(TrainerExited(2, 0, 0, 9, "")))
        with _dial(context, server.endpoint, server.issue("agent")) as agent:
            agent.send_multipart(delivery.numbered(encode(TrainerExited(3, 0, 0, 9, ""))))
            agent.send_multipart(delivery.passing(encode(Reconnected())))
            for frames in delivery.again():
                agent.send_multipart(frames)
            assert _receive(agent, delivery) == StopRun("second")
            server.send(peer, StopRun("third"))
            assert _receive(agent, delivery) == StopRun("third")
    assert lost
    said = [inbox.get(timeout=5)[1] for _ in range(2)]
    assert [message.generation for message in said if isinstance(message, TrainerExited)] == [2, 3]
    assert inbox.empty()


def test_what_was_kept_for_an_agent_that_is_forgotten_is_gone_and_it_is_counted_anew(
    server: ControlServer, inbox: Inbox
) -> None:
    with zmq.Context() as context, _dial(context, server.endpoint, server.issue("agent")) as agent:
        agent.send_multipart(Redelivery().passing(encode(Heartbeat(5))))
        peer, _ = inbox.get(timeout=5)
        server.send(peer, StopRun("first"))
        server.forget([peer])
        server.send(peer, StopRun("second"))
        for messages in ([Heard(), StopRun("first")], [StopRun("second")]):
            delivery = Redelivery()  # of an agent that has taken nothing yet
            assert [_receive(agent, delivery) for _ in messages] == messages
        agent.send_multipart(Redelivery().passing(encode(Reconnected())))
        assert _receive(agent, Redelivery()) == StopRun("second")


def test_nothing_is_heard_with_another_key(server: ControlServer, inbox: Inbox) -> None:
    public, secret = zmq.curve_keypair()
    stranger_keys = AgentKeys(server.public, public, secret)
    with (
        zmq.Context() as context,
        _dial(context, server.endpoint, stranger_keys, b"stranger-1") as stranger,
        _dial(context, server.endpoint, server.issue("agent")) as agent,
    ):
        stranger.send_multipart(Redelivery().passing(encode(Heartbeat(666))))
        agent.send_multipart(Redelivery().passing(encode(Heartbeat(1))))
        assert inbox.get(timeout=5)[1] == Heartbeat(1)
        with pytest.raises(queue.Empty):
            inbox.get(timeout=0.5)


def test_a_malformed_message_of_an_agent_is_dropped_and_the_next_one_heard(
    server: ControlServer, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    with zmq.Context() as context, _dial(context, server.endpoint, server.issue("agent")) as agent:
        agent.send_multipart(Redelivery().passing([b"nonsense", b""]))
        agent.send_multipart([b"no envelope", b"nonsense", b""])
        agent.send_multipart(Redelivery().passing(encode(Heartbeat(2))))
        assert inbox.get(timeout=5)[1] == Heartbeat(2)
    assert "malformed" in caplog.text


def test_random_bytes_are_logged_once(server: ControlServer, inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    where = urlsplit(server.endpoint)
    with caplog.at_level(logging.WARNING, "tfos_magic.cluster"):
        for _ in range(5):
            with socket.create_connection((where.hostname, where.port), timeout=5) as stranger:
                stranger.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03" + b"x" * 80)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):
                        pass
        with zmq.Context() as context, _dial(context, server.endpoint, server.issue("agent")) as agent:
            agent.send_multipart(Redelivery().passing(encode(Heartbeat(3))))
            assert inbox.get(timeout=5)[1] == Heartbeat(3)
    assert caplog.text.count("refused a connection") == 1


def test_keys_are_not_shown(server: ControlServer) -> None:
    keys = server.issue("agent")
    assert keys.secret.decode() not in repr(keys)


def test_a_taken_port_is_told_with_its_remedy(server: ControlServer) -> None:
    port = urlsplit(server.endpoint).port
    assert port
    with pytest.raises(ClusterError, match=r"TFOS\.control_port"):
        ControlServer("127.0.0.1", port, lambda peer, message: None)


def test_closing_frees_the_port_and_ends_the_threads() -> None:
    before = set(threading.enumerate())
    server = ControlServer("127.0.0.1", 0, lambda peer, message: None)
    where = urlsplit(server.endpoint)
    server.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((where.hostname, where.port), timeout=2)


def test_an_agent_is_heard_by_its_own_name_alone(
    server: ControlServer, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    keys = server.issue("agent")
    server.issue("another")
    with (
        zmq.Context() as context,
        _dial(context, server.endpoint, keys, b"another-1") as borrowing,
        _dial(context, server.endpoint, keys, b"agent-1") as agent,
    ):
        for _ in range(3):
            borrowing.send_multipart(Redelivery().passing(encode(Heartbeat(666))))
        assert not borrowing.poll(500), "it has no answer"
        agent.send_multipart(Redelivery().passing(encode(Heartbeat(1))))
        assert inbox.get(timeout=5) == (b"agent-1", Heartbeat(1))
        assert inbox.empty()
    assert caplog.text.count("another's name") == 1


TAKEN_OVER = """
import os, queue, socket, threading, time
from tfos_magic.transport import control_client
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Authority
from tfos_magic.transport.messages import AgentEnded, TrainerExited

inbox = queue.SimpleQueue()
server = ControlServer("127.0.0.1", 0, lambda peer, message: inbox.put(message))
keys = server.issue("agent")
listener = socket.create_server(("127.0.0.1", 0))
outer = socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2])))

over = threading.Event()

def hand_on(source, target):
    source.settimeout(0.05)
    while not over.is_set():
        try:
            target.sendall(source.recv(1 << 16))
        except TimeoutError:
            pass

def dial(endpoint):
    identity = Authority().identify("worker-0")
    return ControlClient(AgentConfig(endpoint, keys.server_public, keys.public, keys.secret, "", identity, job="agent"))

control_client.secrets.token_hex = lambda size: "one name"
first = dial(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
inner = listener.accept()[0]
threads = [threading.Thread(target=hand_on, args=ends) for ends in ((inner, outer), (outer, inner))]
for thread in threads:
    thread.start()
first.send(TrainerExited(1, 0, 1, 0, "by the first"))
print(inbox.get(timeout=10).output)
second = dial(server.endpoint)
time.sleep(0.5)
first.send(AgentEnded("too late"))
time.sleep(0.2)
over.set()
for thread in threads:
    thread.join()
outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4))
outer.close()
time.sleep(3)
print("lives", flush=True)
os._exit(0)
"""


def test_a_connection_that_ends_when_its_agent_has_come_back_by_another_leaves_the_kernel_alive() -> None:
    """It aborted the process where the kernel's own socket asked its peers whether they live."""
    done = subprocess.run([sys.executable, "-c", TAKEN_OVER], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (0, "by the first\nlives\n"), done.stderr
