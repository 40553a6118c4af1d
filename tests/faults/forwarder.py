"""A line between agents and kernel that can be cut."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from urllib.parse import urlsplit


class Forwarder:
    """Hands the bytes of every connection to ``target`` (``tcp://host:port``) on, in one thread, until it is closed.

    What is cut loses the bytes that are on their way, as a broken TCP connection does.
    """

    def __init__(self, target: str) -> None:
        where = urlsplit(target)
        self._target = (where.hostname, where.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._swallowing, self._cut, self._closing = threading.Event(), threading.Event(), threading.Event()
        self.swallowed = 0
        self._thread = threading.Thread(target=self._serve, name="forwarder")
        self._thread.start()

    def swallow(self) -> None:
        """From now on bytes are taken and lost."""
        self._swallowing.set()

    def cut(self) -> None:
        """Close every connection, and each new one at once."""
        self._cut.set()

    def mend(self) -> None:
        """Let connections through again."""
        self._cut.clear()
        self._swallowing.clear()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(10)

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._others:
                    self._hand_on(key.fileobj)  # type: ignore[arg-type]
            if self._cut.is_set():
                self._drop_all()
        self._drop_all()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        inner = self._listener.accept()[0]
        if self._cut.is_set():
            inner.close()
            return
        try:
            outer = socket.create_connection(self._target, timeout=5)
        except OSError:
            inner.close()
            return
        for one, other in ((inner, outer), (outer, inner)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _hand_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
            if self._swallowing.is_set():
                self.swallowed += len(data)
            elif data:
                self._others[source].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        for each in (one, self._others[one]):
            self._selector.unregister(each)
            with contextlib.suppress(OSError):
                each.close()
            del self._others[each]

    def _drop_all(self) -> None:
        while self._others:
            self._drop(next(iter(self._others)))
