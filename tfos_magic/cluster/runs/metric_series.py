"""Curves and times of a run in bounded memory, however long the run, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, replace

POINTS = 80


class MetricSeries:
    """A curve by ascending x that keeps its ends and its shape in at most ``limit`` points, and one more: the newest.

    When it is full every other point goes, and from then on only every other point is taken in.
    """

    def __init__(self, limit: int = POINTS) -> None:
        self._limit = limit
        self._every = 1
        self._passed = 0
        self._kept: list[tuple[float, float]] = []
        self._newest: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        """Add a point; where x is not beyond the newest, what was drawn from x on is taken back first."""
        if self._newest is not None and x <= self._newest[0]:
            self.cut(x)
        self._newest = (x, y)
        if self._passed % self._every == 0:
            self._kept.append(self._newest)
        self._passed += 1
        if len(self._kept) > self._limit:
            self._kept = self._kept[::2]
            self._every *= 2

    def cut(self, x: float) -> None:
        """Take back the points from ``x`` on."""
        self._kept = [point for point in self._kept if point[0] < x]
        self._newest = self._kept[-1] if self._kept else None
        self._passed = (len(self._kept) - 1) * self._every + 1
        if not self._kept:
            self._every, self._passed = 1, 0

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points kept, and the newest."""
        if self._newest is None or (self._kept and self._kept[-1] == self._newest):
            return list(self._kept)
        return [*self._kept, self._newest]


class Stopwatch:
    """Seconds by activity, one activity at a time; they add up to the time since ``since``."""

    def __init__(self, activity: str, since: float) -> None:
        self._activity, self._since = activity, since
        self._seconds: dict[str, float] = {}

    def switch(self, activity: str, now: float) -> None:
        """From ``now`` on it is ``activity`` that takes the time."""
        if activity != self._activity:
            self._seconds = self.read(now)
            self._activity, self._since = activity, now

    def read(self, now: float) -> dict[str, float]:
        """Seconds by activity up to ``now``, in the order in which the activities first began."""
        spent = self._seconds.get(self._activity, 0.0) + max(0.0, now - self._since)
        return {**self._seconds, self._activity: spent}


@dataclass(frozen=True)
class Awaited:
    """What a run waits for, such as ``agents: 1 of 2``, ``since`` when, and ``until`` when at most, which may be inf.

    Both are times of the run's clock.
    """

    what: str
    since: float
    until: float

    def after(self, before: Awaited | None) -> Awaited:
        """The same, which has been waited for as long as what was ``before``, if that differs in a count alone."""
        alike = before is not None and before.what.partition(":")[0] == self.what.partition(":")[0]
        return replace(self, since=before.since) if before is not None and alike else self
