"""Listing folders in the order of the disk where copies stand for them: programs take files as they come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")


@contextmanager
def listed_as(order_of: Callable[[str], Iterable[str]]) -> Iterator[None]:
    """Until the block ends, let ``os.listdir`` and ``os.scandir``, and what stands on them, give a folder's names in
    the order that ``order_of`` gives for its absolute path; names that are not there come last.
    """
    listdir, scandir = os.listdir, os.scandir

    def order(path: Any, items: Iterable[Item], name: Callable[[Item], str]) -> list[Item]:
        places = {each: place for place, each in enumerate(order_of(os.path.realpath(os.fspath(path))))}
        return sorted(items, key=lambda item: places.get(name(item), len(places)))

    def ordered_listdir(path: Any = ".") -> Any:
        names = listdir(path)
        return order(path, names, str) if isinstance(path, (str, os.PathLike)) else names

    def ordered_scandir(path: Any = ".") -> Any:
        entries = scandir(path)
        return _Scan(order(path, _all(entries), _name)) if isinstance(path, (str, os.PathLike)) else entries

    os.listdir, os.scandir = ordered_listdir, ordered_scandir
    try:
        yield
    finally:
        os.listdir, os.scandir = listdir, scandir


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _all(entries: Any) -> list[os.DirEntry[str]]:
    with entries:
        return list(entries)


class _Scan(Iterator[Any]):
    """What ``os.scandir`` gives: an iterator that can be closed."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give no more."""
        self._entries = iter(())
