"""Peers that say nothing, or next to nothing, where ranks meet: they delay nobody."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tfos_magic.errors import ClusterError
from tfos_magic.training.allreduce import handshake, unix_peers
from tfos_magic.training.allreduce.rendezvous import Star
from tfos_magic.transport import side_by_side

SECRET = b"of this group"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with handshake.listen("127.0.0.1:0") as listening:
        yield listening


@contextmanager
def dripping(address: tuple[str, int], pause: float) -> Iterator[threading.Thread]:
    """A peer that says one byte of a hello after the other; gives the thread that ends when it is turned away."""

    def drip() -> None:
        with suppress(OSError):
            while not over.wait(pause):
                peer.sendall(b"t")

    over = threading.Event()
    with socket.create_connection(address) as peer:
        thread = threading.Thread(target=drip, name="tfos-test-drip")
        thread.start()
        yield thread
        over.set()
        thread.join(10)


def _address(listener: socket.socket) -> str:
    return "{}:{}".format(*listener.getsockname())


def test_one_that_is_silent_and_one_that_drips_delay_no_rank(listener: socket.socket) -> None:
    begun = time.monotonic()
    joined: list[socket.socket] = []
    with ExitStack() as opened:
        opened.enter_context(socket.create_connection(listener.getsockname()))
        opened.enter_context(dripping(listener.getsockname(), 0.5))
        peers = handshake.accept(listener, "star", SECRET, begun + 30)
        for rank in (1, 2):
            connected = threading.Thread(
                target=lambda rank=rank: joined.append(
                    handshake.connect(_address(listener), rank, "star", SECRET, begun + 30)
                ),
                name="tfos-test-rank",
            )
            connected.start()
            came, peer = next(peers)
            opened.callback(peer.close)
            connected.join(10)
            assert came == rank
        peers.close()
    for each in joined:
        each.close()
    assert time.monotonic() - begun < handshake.HANDSHAKE_SECONDS


def test_a_start_ends_at_its_deadline_whoever_drips(listener: socket.socket) -> None:
    begun = time.monotonic()
    with dripping(listener.getsockname(), 0.3):
        with pytest.raises(ClusterError, match="no answer from rank 1"):
            Star(0, [_address(listener), "127.0.0.1:1"], listener, SECRET, 2.0)
        assert time.monotonic() - begun < 3.0


def test_a_peer_has_its_seconds_however_it_spreads_its_bytes(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 1.0)
    begun = time.monotonic()
    with dripping(listener.getsockname(), 0.2) as dripped:
        with pytest.raises(TimeoutError):
            next(handshake.accept(listener, "star", SECRET, begun + 2.5))
        assert time.monotonic() - begun < 4.0
        dripped.join(0.5)
        assert not dripped.is_alive()  # turned away while others could still come


def test_a_rank_gives_up_on_a_server_that_drips(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 1.0)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError), listener.accept()[0] as peer:
                while not over.wait(0.1):
                    peer.sendall(b"x")

    listener.settimeout(0.2)
    thread = threading.Thread(target=serve, name="tfos-test-drip")
    thread.start()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        handshake.connect(_address(listener), 1, "star", SECRET, begun + 2.0)
    over.set()
    thread.join(10)
    assert time.monotonic() - begun < 4.0


@pytest.mark.usefixtures("many_descriptors")
def test_many_silent_peers_are_not_all_held_and_a_rank_comes_through(
    listener: socket.socket,
) -> None:
    begun = time.monotonic()
    with ExitStack() as opened:
        peers = handshake.accept(listener, "star", SECRET, begun + 60)
        joined: list[socket.socket] = []

        def strangers_then_rank() -> None:
            for _ in range(3 * side_by_side.AT_ONCE):
                opened.enter_context(socket.create_connection(listener.getsockname()))
            joined.append(handshake.connect(_address(listener), 7, "star", SECRET, begun + 60))

        thread = threading.Thread(target=strangers_then_rank, name="tfos-test-strangers")
        thread.start()
        rank, peer = next(peers)
        held = sum(each.name == "tfos-verify" for each in threading.enumerate())
        peers.close()
        thread.join(10)
        for each in (peer, *joined):
            each.close()
    assert rank == 7
    assert held <= side_by_side.AT_ONCE
    assert not [each for each in threading.enumerate() if each.name == "tfos-verify"]


def test_a_silent_process_at_the_socket_of_a_host_delays_no_mesh() -> None:
    invitation = unix_peers.GroupInvitation.derive(os.urandom(16), "here")
    file = unix_peers.nameless_file(4096)
    begun = time.monotonic()
    with unix_peers.listen(invitation) as listening, ExitStack() as opened:
        for hello in (b"", b"?"):
            silent = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            silent.connect(invitation.address)
            if hello:
                silent.send(hello)
        met: list[int] = []

        def member() -> None:
            mesh, descriptor = unix_peers.join(invitation, 1, [0, 1], 10.0)
            mesh.meet(7)
            met.append(1)
            mesh.close()
            os.close(descriptor)

        thread = threading.Thread(target=member, name="tfos-test-member")
        thread.start()
        mesh = unix_peers.host(listening, invitation, [0, 1], file, 10.0)
        mesh.meet(7)
        thread.join(10)
        mesh.close()
    os.close(file)
    assert met == [1]
    assert time.monotonic() - begun < handshake.HANDSHAKE_SECONDS
