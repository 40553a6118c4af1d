"""Connections between ranks: who knows the secret of the group is let in for what it says and signs, nothing else."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tfos_magic.training.allreduce.handshake import _proof, accept, connect, listen, receive

SECRET, SECONDS = b"of the group", 5.0


def _hello(use: bytes) -> bytes:
    """What a rank says first."""
    return b"tfos-1" + bytes(2) + use.ljust(8, b"\0") + bytes(16)


def test_a_rank_that_came_for_another_use_or_signed_another_is_not_let_in() -> None:
    deadline = time.monotonic() + SECONDS
    with (
        listen("127.0.0.1:0") as listener,
        closing(accept(listener, "rows", SECRET, deadline)) as peers,
        ThreadPoolExecutor(1, thread_name_prefix="tfos-test") as threads,
    ):
        came = threads.submit(next, peers)
        with socket.create_connection(listener.getsockname(), SECONDS) as other:
            other.sendall(_hello(b"data"))
            assert other.recv(1) == b""
        with socket.create_connection(listener.getsockname(), SECONDS) as altered:
            altered.sendall(_hello(b"rows"))
            challenge = receive(altered, 16 + 32)[:16]
            altered.sendall(_proof(SECRET, b"client", _hello(b"data"), challenge))
            assert altered.recv(1) == b""
        connect("{}:{}".format(*listener.getsockname()), 7, "rows", SECRET, deadline).close()
        rank, peer = came.result(SECONDS)
        peer.close()
    assert rank == 7
