"""A line between two ends of which one byte can be changed on its way."""

from __future__ import annotations

import socket
import threading


class Meddler:
    """Hands the bytes of each connection to ``target`` (host and port) on; changes one of what the caller sends.

    ``meddle(count)`` flips a bit of the byte that comes after ``count`` more of them.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._after: int | None = None
        self.meddled = threading.Event()
        self._opened: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="meddler-accept", daemon=True)]
        self._threads[0].start()

    def meddle(self, count: int = 0) -> None:
        with self._lock:
            self._after = count

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._opened:
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            called = socket.create_connection(self._target)
            self._opened += [caller, called]
            for source, sink, meddles in ((caller, called, True), (called, caller, False)):
                thread = threading.Thread(target=self._hand_on, args=(source, sink, meddles), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, meddles: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(self._changed(data) if meddles else data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _changed(self, data: bytes) -> bytes:
        with self._lock:
            if self._after is None:
                return data
            if self._after >= len(data):
                self._after -= len(data)
                return data
            at, self._after = self._after, None
        self.meddled.set()
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
