"""Who may ask TensorBoard: those who know the secret that the path of every request begins with.

Any user of the machine, and any page in a browser, can reach a port of 127.0.0.1. The secret keeps both out, and pages
that come by DNS rebinding with them, which know the port and not the path. Names of hosts are looked at besides: a
browser that asks straight says ``localhost`` or ``127.0.0.1``, with the port that a tunnel of the user's may have
changed. What comes by jupyter-server-proxy has the name that the browser knows the Jupyter server by, a hub's perhaps;
it says so in a header that anybody can write, so that there the secret alone decides.
"""

from __future__ import annotations

import hmac
import socket
import socketserver
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

MOST_CONNECTIONS = 128
IDLE_SECONDS = 30.0

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_PROXIED = "HTTP_X_PROXYCONTEXTPATH"
_NOTHING = [("Content-Type", "text/plain"), ("X-Content-Type-Options", "nosniff"), ("Content-Length", "0")]
# What a page asks of others tells them where it is; a Jupyter server writes that to its log.
_QUIET = ("Referrer-Policy", "no-referrer")


class Guarded:
    """A WSGI application that answers below ``/secret`` alone, and everywhere else with an empty 404."""

    def __init__(self, application: Application, secret: str) -> None:
        self._application, self._secret = application, secret.encode()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not (self._is_known(environ.get("PATH_INFO", "")) and _is_from_here(environ)):
            start_response("404 Not Found", _NOTHING)
            return []

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, [*headers, _QUIET], *error)

        return self._application(environ, start)

    def _is_known(self, path: str) -> bool:
        first = path.removeprefix("/").partition("/")[0]
        return hmac.compare_digest(first.encode(errors="replace"), self._secret)


class FewConnections(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Has a thread for each of its connections, and few of them: the oldest goes for the newest, whoever has it.

    A browser opens another when it needs it. Strangers who say nothing keep nobody out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._open: dict[Any, None] = {}
        super().__init__(*args, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        request.settimeout(IDLE_SECONDS)
        self._open[request] = None
        if len(self._open) > MOST_CONNECTIONS:
            oldest = next(iter(list(self._open)))
            self._open.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread does the rest
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection that was served."""
        self._open.pop(request, None)
        super().shutdown_request(request)


def _is_from_here(environ: dict[str, Any]) -> bool:
    if _PROXIED in environ:
        return True
    try:
        return urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname in LOCAL_NAMES
    except ValueError:  # no host can be called that
        return False
