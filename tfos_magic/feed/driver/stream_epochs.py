"""What a run reads of streamed feeds: leases, and the epochs of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.columns.columns import FeedPlan
from tfos_magic.columns.digest import RowsDigest
from tfos_magic.errors import FeedError
from tfos_magic.feed.driver.sources.fed_frame import unlike
from tfos_magic.feed.driver.streaming_query import LiveQuery

NEGLECT_SECONDS = 300.0


@dataclass
class StreamEpoch:
    """One iteration of ``ranks`` over a streamed feed: who asked for it first, and who since; who wants no more."""

    stream: str
    ranks: frozenset[int]
    begun: float = field(default_factory=time.monotonic)
    asked: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    thread: threading.Thread | None = None
    cancelled: bool = False

    @property
    def tag(self) -> str:
        return f"tfos-stream-{self.stream.replace('/', '-')}"

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


@dataclass
class EpochLease:
    """A run's use of a streamed feed of DataFrame ``df``, which the cell knows as ``name``, by ``ranks``.

    ``digests`` are those of the partitions of the first epoch whose job has ended; ``told`` says that the user knows of
    rows that were computed otherwise later.
    """

    lease: str
    name: str
    df: Any
    plan: FeedPlan
    schema: str
    ranks: frozenset[int]
    query: LiveQuery | None = None
    digests: tuple[RowsDigest, ...] = ()
    told: bool = False
    epochs: dict[int, list[StreamEpoch]] = field(default_factory=dict)

    def compare(self, digests: tuple[RowsDigest, ...]) -> str:
        """How the rows of an epoch differ from those of the first one, if they do and the user does not know yet."""
        self.digests = self.digests or digests
        how = "" if self.told else unlike(digests, self.digests)
        self.told = self.told or bool(how)
        return how


def check_neglect(lease: EpochLease, number: int, epoch: StreamEpoch) -> None:
    """Raise :class:`FeedError` where workers wait for rows of an epoch that another one has not asked for."""
    missing: Sequence[int] = sorted(epoch.ranks - epoch.asked - epoch.dropped)
    waiting = epoch.asked - epoch.dropped
    if not (missing and waiting and epoch.running) or time.monotonic() - epoch.begun < NEGLECT_SECONDS:
        return
    raise FeedError(
        f"{lease.name!r} is streamed, but worker {missing[0]} did not start reading it within {NEGLECT_SECONDS:.0f} s "
        f"of worker {min(waiting)} (pass {number + 1} over it): every worker must read it equally often, and none may "
        "wait for another in between; for rows on one worker only, use a smaller DataFrame"
    )
