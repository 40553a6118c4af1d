"""TLS between hosts: either end turns away who is not the peer that it expects, though it be of the cluster."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfos_magic.transport.identity import Authority, worker_name
from tfos_magic.transport.tls import TlsPeers

NAMES = [worker_name(0), worker_name(1)]
SECONDS = 5.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """Where the far end does its part."""
    with ThreadPoolExecutor(1, thread_name_prefix="tfos-test") as threads:
        yield threads


def test_whoever_connects_takes_no_other_executor_for_the_one_it_expects(
    ends: tuple[socket.socket, socket.socket], other: ThreadPoolExecutor
) -> None:
    authority, (near, far), deadline = Authority(), ends, time.monotonic() + SECONDS
    honest, posing = (TlsPeers(authority.identify(worker_name(slot)), NAMES) for slot in (0, 2))
    accepting = other.submit(posing.accepted, far, 0, deadline)
    with pytest.raises(ssl.SSLCertVerificationError, match=NAMES[1]):
        honest.connected(near, 1, deadline)
    with pytest.raises(ssl.SSLError):
        accepting.result(SECONDS)


def test_whoever_shows_no_certificate_is_turned_away_before_its_name_is_looked_at(
    ends: tuple[socket.socket, socket.socket], other: ThreadPoolExecutor
) -> None:
    identity, (near, far) = Authority().identify(NAMES[0]), ends
    far.settimeout(SECONDS)
    stranger = ssl.create_default_context(cadata=identity.authority)
    connecting = other.submit(lambda: stranger.wrap_socket(far, server_hostname=NAMES[0]).close())
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        TlsPeers(identity, NAMES).accepted(near, 1, time.monotonic() + SECONDS)
    connecting.result(SECONDS)
