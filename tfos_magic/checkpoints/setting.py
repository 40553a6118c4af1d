"""What the order of a run's rows follows from, beside its seed: kept with each checkpoint, for the middle of an epoch
means other rows under another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rows:
    """The mark of a DataFrame: its number of rows, digests of its columns, of its rows in whatever order, of them in
    their order, and of the sizes of its partitions, and for how many partitions Spark planned it, 0 where that is not
    known."""

    rows: int
    columns: int
    content: int
    order: int
    partitions: int
    parallelism: int = 0

    def is_of(self, other: Rows) -> bool:
        """Whether the rows are the same, in whatever order."""
        return (self.rows, self.columns, self.content) == (other.rows, other.columns, other.content)


def rows_of(mark: Sequence[int]) -> Rows | None:
    """The mark as lists hold it; None where rows are not known, as those of a stream."""
    return Rows(*mark) if mark else None


def earlier_marks(names: Iterable[str], then: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The marks ``then`` of DataFrames that have these ``names`` now; one of a new name takes an old one's place."""
    known = list(names)
    others = iter([mark for name, mark in then.items() if name not in known])
    return {name: then[name] if name in then else next(others, ()) for name in known}


@dataclass(frozen=True)
class Setting:
    """``strategy`` and ``workers`` of a run; ``batch_size`` rows of all workers together, whether they ``shuffle``, and
    the marks of the DataFrames ``feeds``, by name."""

    strategy: str
    workers: int
    batch_size: int
    shuffle: bool
    feeds: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def meta(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return asdict(self)

    def unlike(self, then: Mapping[str, Any], *, follows_ranks: bool = False) -> list[str]:
        """What makes the rows of steps others than those of a run with the setting ``then``, its :meth:`meta`; nothing
        where that is not known. ``follows_ranks`` says that the cell's own data have others with other workers."""
        return list(self._unlike(Setting(**then), follows_ranks)) if then else []

    def _unlike(self, then: Setting, follows_ranks: bool) -> Iterator[str]:
        if self.strategy != then.strategy:
            yield f"strategy {self.strategy} instead of {then.strategy}"
        follows_ranks = follows_ranks or self.strategy != "sync" or bool(self.feeds and self.shuffle)
        if self.workers != then.workers and follows_ranks:
            yield f"{self.workers} worker{'s' * (self.workers > 1)} instead of {then.workers}"
        if not self.feeds:
            return
        if self.batch_size != then.batch_size:
            yield f"batches of {self.batch_size:,} rows instead of {then.batch_size:,}"
        if self.shuffle != then.shuffle:
            yield (
                "shuffled rows instead of rows in their order" if self.shuffle else "rows in their order, not shuffled"
            )
        earlier = earlier_marks(self.feeds, then.feeds)
        for name, mark in self.feeds.items():
            if (rows := rows_of(mark)) is not None and (before := rows_of(earlier[name])) is not None:
                yield from _unlike_rows(name, rows, before, self.shuffle)


def _unlike_rows(name: str, now: Rows, then: Rows, shuffle: bool) -> Iterator[str]:
    if now.rows != then.rows:
        yield f"{name} with {now.rows:,} rows instead of {then.rows:,}"
    elif not now.is_of(then):
        yield f"{name} with other rows"
    elif now.order != then.order:
        yield f"{name} with its rows in another order"
    elif shuffle and now.partitions != then.partitions:
        yield f"{name} with its rows in other partitions"
