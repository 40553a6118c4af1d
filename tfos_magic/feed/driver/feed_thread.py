"""A feed under way in a thread of its own, so that the notebook's thread can draw, and be interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from uuid import uuid4

from tfos_magic.background import begun
from tfos_magic.errors import FeedError
from tfos_magic.feed.driver.sources.fed_frame import SpooledFeed


class FeedJobThread:
    """Does ``bring(self)``, whose Spark jobs have the tag ``tag``; ``cancel_jobs`` is given it to end them, and says
    whether they do.

    ``feed_id`` is empty until it begins to send rows.
    """

    def __init__(self, bring: Callable[[FeedJobThread], SpooledFeed], cancel_jobs: Callable[[str], bool]) -> None:
        self.feed_id, self.tag = "", f"tfos-feed-{uuid4().hex[:12]}"
        self._bring, self._cancel_jobs = bring, cancel_jobs
        self._cancelled = False
        self._result: SpooledFeed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.tag, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._bring(self)
        except BaseException as error:  # raised again where the result is asked for
            self._error = error
        del self._bring  # it holds the DataFrame, which may go

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout: float) -> bool:
        """True when the feed has ended, well or not, within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def result(self) -> SpooledFeed:
        """The feed, or the error that ended it. Call it when the feed has ended."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def check(self) -> None:
        """Raise :class:`FeedError` where the feed was cancelled before it began."""
        if self._cancelled:
            raise FeedError("the feed was cancelled before it began")

    def cancel(self, timeout: float = 5.0) -> None:
        """Cancel the feed's Spark job and wait for its end, ``timeout`` seconds at most."""
        self._cancelled = True
        # In a thread of its own: PySpark prints a traceback for a call that is interrupted.
        asked = begun(lambda: self._cancel_jobs(self.tag), f"{self.tag}-cancel")
        wait([asked], timeout)
        if asked.done() and asked.result():
            self._thread.join(timeout)
