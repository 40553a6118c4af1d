"""Servers in processes of their own, whose memory, processor time and descriptors can be looked at."""

from __future__ import annotations

import json
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

import psutil
import pytest
import zmq
from pyarrow import flight

from tests.feed_access import TOKEN
from tfos_magic.feed.access import FeedAccess
from tfos_magic.transport.control_server import AgentKeys
from tfos_magic.transport.identity import Identity
from tfos_magic.transport.messages import FeedEndpoint, Heartbeat, encode
from tfos_magic.transport.redelivery import Redelivery

GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""What opens a connection of ZMTP 3.0 with CURVE (https://rfc.zeromq.org/spec/23)."""
HUGE = struct.pack("!Q", 8 << 30)
"""The length of a frame, as ZMTP writes it."""
SECRET = "of the parameter servers"
DESCRIPTORS = 512
"""Fewer than strangers have."""

_SERVE = f"""
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
def tell(**words):
    print(json.dumps(words), flush=True)
def end(server):
    sys.stdin.read()
    server.close()
    os._exit(0)  # TensorFlow takes its time
"""
CONTROL = (
    _SERVE
    + """
from tfos_magic.transport.control_server import ControlServer
server = ControlServer("127.0.0.1", 0, lambda peer, message: None)
issued = server.issue("agent")
keys = [key.decode() for key in (issued.server_public, issued.public, issued.secret)]
tell(port=int(server.endpoint.rpartition(":")[2]), keys=keys)
end(server)
"""
)
PARAMETERS = (
    _SERVE
    + f"""
import socket
from tfos_magic.training.parameter_server.server import ParameterServer
with socket.socket() as held:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    server = ParameterServer(f"127.0.0.1:{{port}}", "{SECRET}")
tell(port=port)
end(server)
"""
)
FEEDS = (
    _SERVE
    + """
from tests.feed_access import feed_access
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
server = FeedFlightServer("127.0.0.1", feed_access(), Spool())
server.start()
tell(port=int(server.endpoint.uri.rpartition(":")[2]), identity=vars(feed_access().identity))
end(server)
"""
)


class Served:
    """A process that serves until it is closed."""

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.address = ("127.0.0.1", int(self.told["port"]))
        self._seen = psutil.Process(self._process.pid)

    @property
    def memory_mb(self) -> float:
        """What the process has of the memory."""
        return self._seen.memory_info().rss / 2**20

    def busy(self, seconds: float) -> float:
        """The share of a processor that it takes in the next ``seconds``."""
        return self._seen.cpu_percent(interval=seconds) / 100

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=5)

    def close(self) -> None:
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[[str], Served]]:
    """Give the server of a program, which all tests of a module have in common; it must end well."""
    with ExitStack() as opened:

        @cache
        def start(program: str) -> Served:
            made = Served(program)
            opened.callback(made.close)
            return made

        yield start


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let this process have a few thousand sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answered_by_control(served: Served, seconds: float) -> bool:
    """Whether the control socket answers an agent that has the key."""
    server, public, secret = (key.encode() for key in served.told["keys"])
    with zmq.Context() as context, dial(context, served.address[1], AgentKeys(server, public, secret)) as agent:
        agent.send_multipart(Redelivery().passing(encode(Heartbeat(5))))
        return bool(agent.poll(int(seconds * 1000)))


def dial(context: zmq.Context[zmq.Socket[bytes]], port: int, keys: AgentKeys, job: str = "agent") -> zmq.Socket[bytes]:
    """The socket of a job's agent."""
    agent = context.socket(zmq.DEALER)
    agent.linger = 0
    agent.curve_serverkey, agent.curve_publickey, agent.curve_secretkey = keys.server_public, keys.public, keys.secret
    agent.routing_id = f"{job}-1".encode()
    agent.connect(f"tcp://127.0.0.1:{port}")
    return agent


def answered_by_parameters(served: Served, seconds: float) -> bool:
    """Whether a parameter server answers a worker that has the secret."""
    from tfos_magic.training.parameter_server.client import ServerGroup

    group = ServerGroup(0, 1, [f"127.0.0.1:{served.address[1]}"], SECRET, start_seconds=seconds)
    group.close()
    return True


def answered_by_feeds(served: Served, seconds: float) -> bool:
    """Whether a feed's port answers who comes by TLS, with certificate and token."""
    access = FeedAccess(TOKEN, Identity(**served.told["identity"]))
    options = access.options(seconds)
    endpoint = FeedEndpoint(f"grpc+tls://127.0.0.1:{served.address[1]}", access.identity.name)
    with access.connect(endpoint) as client, pytest.raises(flight.FlightServerError, match="there is no action"):
        list(client.do_action(flight.Action("a question", b""), options))
    return True


def poured(stranger: socket.socket, most: int, seconds: float = 5.0) -> int:
    """Bytes that a peer takes of a stranger, at most ``most``, before it ends the connection."""
    sent, junk, deadline = 0, bytes(1 << 20), time.monotonic() + seconds
    stranger.settimeout(0.2)
    while sent < most and time.monotonic() < deadline:
        with suppress(TimeoutError):
            try:
                sent += stranger.send(junk)
            except (ConnectionResetError, BrokenPipeError):
                return sent
    return sent
