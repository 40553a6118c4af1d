"""An agent's connection to the fork server of its executor, which it starts where there is none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from tfos_magic.this_host import peer_user

LISTENER_VARIABLE = "TFOS_LISTENER_FD"
SERVER_MODULE = "tfos_magic.worker.fork_server"
SERVER_NAME, TRAINER_NAME = "tfos-forkserver", "tfos-trainer"
MESSAGE_BYTES = 1 << 18
DESCRIPTORS = 3
TAIL_BYTES = 4096
_SINGLE_THREADED = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass
class ForkedProcess:
    """A process that was asked for: its ``pid`` once it is known, its ``code`` once it has ended (minus a signal), and
    whether the server was lost, which takes it along."""

    number: int
    pid: int = 0
    code: int | None = None
    server_lost: bool = False


class ForkClient:
    """Asks for processes of the server that ``hash_seed``, this process's parent and its container have in common.

    ``environment`` is what a server gets that has to be started. Use it from one thread.
    """

    def __init__(self, hash_seed: str, environment: Mapping[str, str]) -> None:
        self._hash_seed, self._environment = hash_seed, {**environment, "PYTHONHASHSEED": hash_seed}
        self._server: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self._forked: dict[int, ForkedProcess] = {}
        self._number = 0
        self._connection = self._connect()

    def fork(self, fds: Sequence[int], environment: Mapping[str, str]) -> ForkedProcess:
        """Ask for a trainer that has ``fds`` as its link, its standard output and its standard error.

        Does not wait: the server may have to load TensorFlow yet.
        """
        self._number += 1
        request = {"id": self._number, "environment": dict(environment), "path": [path for path in sys.path if path]}
        try:
            self._ask(request, fds)
        except OSError:  # it has ended: by a fault, or since nobody was connected
            self._lose()
            self._connection = self._connect()
            self._ask(request, fds)
        forked = self._forked[self._number] = ForkedProcess(self._number)
        return forked

    def poll(self, forked: ForkedProcess) -> int | None:
        """The exit code of a process, negative where a signal ended it; None while it runs."""
        while forked.code is None and self._hear():
            pass
        return forked.code

    def kill(self, forked: ForkedProcess, timeout: float) -> None:
        """End a process and its group, for which it waits ``timeout`` seconds; one that is yet to come ends then."""
        deadline = time.monotonic() + timeout
        self.poll(forked)
        if forked.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(forked.pid, signal.SIGKILL)
        else:
            with contextlib.suppress(OSError):
                self._ask({"kill": forked.number}, ())
        while forked.pid and self.poll(forked) is None and time.monotonic() < deadline:
            time.sleep(0.005)

    def last_output(self) -> str:
        """The end of what a server that this process started wrote, which tells why one died."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - TAIL_BYTES))
        return self._output.read().decode(errors="ignore")  # the first letter may be cut

    def close(self) -> None:
        """Leave the server, which ends what this process had it fork."""
        self._connection.close()
        self._output.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has other agents
                self._server.wait(0.5)

    def _ask(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        socket.send_fds(self._connection, [json.dumps(request).encode()], list(fds))

    def _hear(self) -> bool:
        """Take one message; False when there is none now."""
        try:
            data = self._connection.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lose()
            return False
        message = json.loads(data)
        forked = self._forked[message["id"]]
        forked.pid = message.get("pid", forked.pid)
        if "failed" in message:
            self._output.write(f"{message['failed']}\n".encode())
        if "failed" in message or "code" in message:
            forked.code = message.get("code", 1)
            del self._forked[forked.number]
        return True

    def _lose(self) -> None:
        """The server has ended, and its trainers with it: killed by the system, or as the server itself was."""
        self._connection.close()
        code = -signal.SIGKILL
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._server.wait(1) or code
        for forked in self._forked.values():
            forked.code, forked.server_lost = code, True
        self._forked.clear()

    def _connect(self) -> socket.socket:
        """Connect to the executor's server, or be the one that starts it."""
        name = _server_name(self._hash_seed)
        while True:
            connection = _socket()
            with _socket() as listener:
                if _is_bound(listener, name):
                    listener.listen()
                    connection.connect(name)
                    self._server = self._start(listener)
                    return connection
            try:
                connection.connect(name)
            except OSError:  # that has just ended
                connection.close()
                continue
            if is_own(connection):
                return connection
            connection.close()  # somebody else's: an executor has one user, so that this one is no executor's
            name += b"-" + os.urandom(8).hex().encode()

    def _start(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", SERVER_MODULE],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=[listener.fileno()],
            env={**_SINGLE_THREADED, **self._environment, LISTENER_VARIABLE: str(listener.fileno())},
            start_new_session=True,
        )


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_bound(listener: socket.socket, name: bytes) -> bool:
    """Bind an address; False where another one has it."""
    try:
        listener.bind(name)
    except OSError:
        return False
    return True


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end is of this user."""
    return peer_user(connection) == os.getuid()


def _server_name(hash_seed: str) -> bytes:
    """An abstract address that the agents of an executor find by themselves: they have one parent, in one container."""
    parent = psutil.Process(os.getppid())
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        container = file.read()
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt", "user")]
    facts = [parent.pid, parent.create_time(), os.getuid(), namespaces, container, sys.executable, hash_seed]
    return b"\0tfos-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:32].encode()
