"""Waiting for what every agent answers about a feed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tfos_magic.errors import FeedError
from tfos_magic.transport.messages import FeedAttached, FeedOpened

ANSWER_TIMEOUT = 30.0


class Answers:
    """Agents' answers, by feed. Thread-safe; who listens to the agents hands them in through :meth:`note`."""

    def __init__(self) -> None:
        self._given: dict[str, list[tuple[int, Any]]] = {}
        self._changed = threading.Condition()

    @contextmanager
    def expected(self, feed_id: str) -> Iterator[None]:
        """Take answers about a feed meanwhile."""
        with self._changed:
            self._given[feed_id] = []
        try:
            yield
        finally:
            with self._changed:
                self._given.pop(feed_id, None)

    def note(self, rank: int, message: FeedOpened | FeedAttached) -> None:
        """Take an agent's answer; one that nobody expects is dropped."""
        with self._changed:
            if message.feed_id in self._given:
                self._given[message.feed_id].append((rank, message))
                self._changed.notify_all()

    def forget(self) -> None:
        """The agents were replaced: those who wait for them wait in vain."""
        with self._changed:
            self._given.clear()
            self._changed.notify_all()

    def await_all(self, feed_id: str, kind: type[Any], ranks: Iterable[int]) -> list[Any]:
        """Wait for one answer of this kind from every rank. Raises :class:`FeedError` for what they say, or do not."""
        due = set(ranks)

        def missing() -> set[int]:
            return due - {rank for rank, answer in self._given.get(feed_id, ()) if isinstance(answer, kind)}

        with self._changed:
            ended = self._changed.wait_for(lambda: not missing() or feed_id not in self._given, ANSWER_TIMEOUT)
            if feed_id not in self._given:
                raise FeedError("the workers were replaced during the feed: run the cell again to feed the rows again")
            if not ended:
                raise FeedError(
                    f"{len(missing())} of {len(due)} workers did not answer {kind.__name__} within "
                    f"{ANSWER_TIMEOUT:.0f} s: see %tfos logs, then %tfos stop and start again"
                )
            answers = [answer for _, answer in self._given[feed_id] if isinstance(answer, kind)]
        if problems := [answer.error for answer in answers if answer.error]:
            raise FeedError(problems[0])
        return answers
