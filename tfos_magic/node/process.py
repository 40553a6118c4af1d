"""A child process that cannot outlive its parent, and the two ends of the link between agent and trainer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from multiprocessing.connection import Connection, Pipe
from typing import IO

from tfos_magic.protocol import Message, decode, encode

LINK_VARIABLE = "TFOS_LINK_FD"
PARENT_VARIABLE = "TFOS_PARENT_PID"
TAIL_LINES = 40
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux), and end now if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    expected = int(os.environ.get(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        os._exit(1)


class Link:
    """Messages over a pipe between agent and trainer. Sending is safe from several threads; receiving is one's job."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def from_environment(cls) -> Link:
        """The trainer's end, as its agent left it in the environment."""
        return cls(Connection(int(os.environ.pop(LINK_VARIABLE))))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Write one message. Raises ``OSError`` when the other end is gone."""
        header, payload = encode(message)
        with self._sending:
            self._connection.send_bytes(header)
            self._connection.send_bytes(payload)

    def receive(self) -> Message:
        """Wait for one message. Raises ``EOFError`` when the other end is gone."""
        header = self._connection.recv_bytes()
        return decode([header, self._connection.recv_bytes()])

    def close(self) -> None:
        self._connection.close()


class TrainerProcess:
    """A running trainer as its agent sees it: the link, the two output pipes, the last lines of output."""

    def __init__(self, generation: int, rank: int, environment: dict[str, str]) -> None:
        self.generation = generation
        self.rank = rank
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        ours, theirs = Pipe(duplex=True)
        env = dict(environment)
        env[LINK_VARIABLE] = str(theirs.fileno())
        env[PARENT_VARIABLE] = str(os.getpid())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tfos_magic.node.trainer"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=env,
            start_new_session=True,
        )
        theirs.close()
        self.link = Link(ours)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.streams: dict[int, tuple[str, IO[bytes]]] = {
            self._process.stdout.fileno(): ("stdout", self._process.stdout),
            self._process.stderr.fileno(): ("stderr", self._process.stderr),
        }
        for fd in self.streams:
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, fd: int) -> str:
        """What there is on an output pipe right now; an ended pipe is closed and dropped from ``streams``."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return ""
        if not data:
            self.streams.pop(fd)[1].close()
            return ""
        text = data.decode(errors="replace")
        self.tail.extend(line for line in text.splitlines() if line.strip())
        return text

    def exit_status(self) -> tuple[int, int] | None:
        """``(exit code, signal)`` once the process has ended, else None."""
        code = self._process.poll()
        if code is None:
            return None
        return (code, 0) if code >= 0 else (0, -code)

    def kill(self, timeout: float = 5.0) -> None:
        """End the trainer and whatever it started, and free the pipes. Waits at most ``timeout`` seconds."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout)
        self.link.close()
        for _, stream in self.streams.values():
            stream.close()
        self.streams.clear()
