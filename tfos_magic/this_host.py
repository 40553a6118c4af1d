"""What this host, and a process on it, are called, so that another kernel can tell whether it still runs."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def host_id() -> str:
    """What this host has since it was booted, and no other; empty where the system does not tell."""
    with suppress(OSError), open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
    return ""


def peer_user(connection: socket.socket) -> int:
    """The number of the user whose process is at the other end of a Unix socket, as the kernel of the system tells."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


@dataclass(frozen=True)
class HostProcess:
    """A process. ``machine`` tells hosts, and containers on one, from others, ``begun`` processes with one pid."""

    host: str
    machine: str
    pid: int
    begun: str

    @property
    def is_gone(self) -> bool:
        """Whether it ran here, and has ended; of processes elsewhere that cannot be told."""
        here = (self.host, self.machine) == (socket.gethostname(), _machine())
        return here and _begun(self.pid) != self.begun


def this_process() -> HostProcess:
    """The one that asks."""
    pid = os.getpid()
    return HostProcess(socket.gethostname(), _machine(), pid, _begun(pid))


def _machine() -> str:
    """The start of this host's system, and in it the container whose processes are numbered together."""
    with suppress(OSError):
        return f"{host_id()}/{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


def _begun(pid: int) -> str:
    """When a process of this host began, in ticks; empty where there is no such process, or nobody has reaped it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
