"""Which feeds the runs of a cluster use, so that none of them goes before its runs have ended."""

from __future__ import annotations

import threading

from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed


class FeedsInUse:
    """Feeds by run, as several runs may go on side by side. Thread-safe."""

    def __init__(self) -> None:
        self._by_run: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def begin(self, run: str) -> None:
        """A run, or another attempt at it, begins to gather its feeds."""
        with self._lock:
            self._by_run[run] = set()

    def add(self, run: str, feed: SpooledFeed) -> SpooledFeed:
        """Keep ``feed``, which is given back, until the end of ``run``."""
        with self._lock:
            self._by_run[run].add(feed.feed_id)
        return feed

    def end(self, run: str) -> None:
        """What only ``run`` used may go."""
        with self._lock:
            self._by_run.pop(run, None)

    def ids(self) -> set[str]:
        """The feeds that may not go."""
        with self._lock:
            return set().union(*self._by_run.values())
