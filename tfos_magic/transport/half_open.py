"""Connections whose peers were not heard yet, of which a socket keeps a bounded number.

ZeroMQ takes whatever connects and waits seconds for its handshake. Strangers who say nothing would use up the process's
file descriptors: then nobody else is let in, and the library's thread spins over a connection that it cannot accept. So
the oldest of them goes for the newest, as in a SYN cache; an honest handshake takes milliseconds.
"""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from tfos_magic.transport.log_once import LogOnce

MOST = 256
# Without failures of the protocol: where these are watched, libzmq 4.3.5 takes a message that was changed on its way
# for one that has yet to come, keeps the connection, and aborts the process when that ends.
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = _REFUSED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED


class HalfOpen:
    """Watches the connections of ``router``, which is bound, in a thread of its own until it is closed.

    ``lost`` is called there when a connection ends over which something was heard. Refusals are logged, each kind once,
    as those of ``name``.
    """

    def __init__(
        self, router: zmq.Socket[bytes], name: str, log: LogOnce, lost: Callable[[], None] = lambda: None
    ) -> None:
        self._router, self._name, self._log, self._lost = router, name, log, lost
        self._port = int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        self._most = min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._lock = threading.Lock()
        self._waiting: dict[int, None] = {}
        self._heard: set[int] = set()
        self._monitor = router.get_monitor_socket(_EVENTS)
        self._thread = threading.Thread(target=self._watch, name="tfos-half-open", daemon=True)
        self._thread.start()

    def heard(self, frame: zmq.Frame) -> None:
        """The peer that sent ``frame`` has shown that it has the key: its connection is kept."""
        descriptor = int(frame.get(zmq.SRCFD))
        if descriptor not in self._heard:
            with self._lock:
                self._heard.add(descriptor)
                self._waiting.pop(descriptor, None)

    def close(self) -> None:
        """Before the socket is closed, and in its thread."""
        self._router.disable_monitor()
        self._thread.join()
        self._monitor.close(0)

    def _watch(self) -> None:
        while (event := recv_monitor_message(self._monitor))["event"] != zmq.EVENT_MONITOR_STOPPED:
            if event["event"] & _REFUSED:
                kind = str(zmq.Event(event["event"]).name).lower().replace("_", " ")
                self._log.warning(kind, f"refused a connection to {self._name} ({kind})")
            elif event["event"] == zmq.EVENT_ACCEPTED:
                self._accepted(event["value"])
            elif self._ended(event["value"]):
                self._lost()
            else:
                self._log.warning("unheard", f"refused a connection to {self._name} (it ended before its handshake)")

    def _accepted(self, descriptor: int) -> None:
        with self._lock:
            if descriptor not in self._heard:
                self._waiting[descriptor] = None
            if len(self._waiting) > self._most:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                shut(oldest, self._port)

    def _ended(self, descriptor: int) -> bool:
        """Whether it was a connection over which something was heard."""
        with self._lock:
            self._waiting.pop(descriptor, None)
            known = descriptor in self._heard
            self._heard.discard(descriptor)
        return known


def shut(descriptor: int, port: int, peer: tuple[str, int] | None = None) -> None:
    """End a connection to ``port`` that belongs to a library, which closes it when it reads the end.

    It may have been closed meanwhile, and the number be another file's, or that of a connection of who is not ``peer``:
    then nothing is done to that.
    """
    with suppress(OSError), borrowed(descriptor) as connection:
        ours = connection.getsockname()[1:2] == (port,)
        if ours and peer in (None, connection.getpeername()[:2]):
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket that a library has by this number, and keeps. Raises :class:`OSError` for what is no socket."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
