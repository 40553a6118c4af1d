"""A log that strangers and broken peers cannot fill."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class LogOnce:
    """Logs the first warning of each kind. Kinds are the caller's own words, of which there are few."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[str] = set()
        self._muted = False

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Log nothing meanwhile: what there is to be warned of, this process itself has begun."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def warning(self, kind: str, text: str, *, trace: bool = False) -> None:
        """Log ``text``, with the error that is being handled where a ``trace`` is wanted."""
        if kind not in self._said and not self._muted:
            self._said.add(kind)
            self._log.warning("%s; further ones of this kind are not logged", text, exc_info=trace)
