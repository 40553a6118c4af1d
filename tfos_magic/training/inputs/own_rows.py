"""Rows that each worker has by itself, as Spark feeds them to a program: how they are batched, and how they end."""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from tfos_magic.training.inputs.marks import inputs_of, mark_sharded

_OWN, _CUT, _TOGETHER = "_tfos_own_rows", "_tfos_own_cut", "_tfos_ends_together"
_FED, _READ = "fed", "read"
_D = TypeVar("_D")


def mark_own(dataset: _D, fed: bool = False) -> _D:
    """Declare that each worker's copy of ``dataset`` has rows of its own, however many; returns it.

    Those that are ``fed`` come once, and not in each epoch.
    """
    setattr(dataset, _OWN, _FED if fed else _READ)
    return mark_sharded(dataset, asked=True)


def is_own(dataset: Any) -> bool:
    """Whether ``dataset`` is made from one of a worker's own rows."""
    return bool(getattr(dataset, _OWN, False)) or any(map(is_own, inputs_of(dataset)))


def note_own(iterator: Any, dataset: Any) -> None:
    """Let ``iterator`` tell of the rows of ``dataset``, which it was made of."""
    if is_own(dataset):
        setattr(iterator, _OWN, _FED if _is_fed(dataset) else _READ)


def has_own_rows(iterator: Any) -> bool:
    """Whether ``iterator`` gives rows of this worker's own."""
    return bool(getattr(iterator, _OWN, ""))


def comes_once(iterator: Any) -> bool:
    """Whether rows of ``iterator`` are fed, so that there are no more when they have ended."""
    return bool(getattr(iterator, _OWN, "") == _FED)


def _is_fed(dataset: Any) -> bool:
    return getattr(dataset, _OWN, "") == _FED or any(map(_is_fed, inputs_of(dataset)))


def of_unknown_length(dataset: Any) -> Any:
    """``dataset`` as one of which nobody knows how many batches it has: of its own rows each worker has others."""
    return dataset.filter(lambda *_: tf.constant(True))


def mark_cut(dataset: _D) -> _D:
    """Declare that the batches of ``dataset`` are this worker's, of its own rows; returns it."""
    setattr(dataset, _CUT, True)
    return mark_own(dataset)


def mark_together(dataset: _D) -> _D:
    """Declare that a loop of the program's own over ``dataset`` ends where the first worker has no more; returns it."""
    setattr(dataset, _TOGETHER, True)
    return dataset


def ends_together(dataset: Any) -> bool:
    """Whether loops over ``dataset`` end on all workers with the first."""
    return bool(getattr(dataset, _TOGETHER, False)) or any(map(ends_together, inputs_of(dataset)))


def is_cut(dataset: Any) -> bool:
    """Whether the batches of ``dataset`` are this worker's already."""
    return bool(getattr(dataset, _CUT, False)) or any(map(is_cut, inputs_of(dataset)))
