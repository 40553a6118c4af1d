"""Which columns the models of this process were trained on, so that a prediction need not name them again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from tfos_magic.errors import UsageError

_FEATURES: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()


def note_features(values: Mapping[str, Any], features: Iterable[tuple[str, ...]]) -> None:
    """Know that the models among ``values``, by name, were trained where DataFrames had these ``features``.

    Nothing is known where DataFrames of one run differ, or have none.
    """
    first, *others = set(features)
    if others or not first:
        return
    for value in values.values():
        if callable(getattr(value, "predict", None)):
            with suppress(TypeError):  # of a kind that cannot be referred to weakly
                _FEATURES[value] = first


def trained_on(model: Any, columns: Collection[str]) -> tuple[str, ...]:
    """The features of ``model``, or all ``columns`` where they are not known.

    Raises :class:`UsageError` where one of the features is not among the columns.
    """
    try:
        features = _FEATURES.get(model, tuple(columns))
    except TypeError:  # a path; or what cannot be referred to weakly
        return tuple(columns)
    if missing := [name for name in features if name not in columns]:
        raise UsageError(
            f"the model was trained on the columns {', '.join(features)}, and the DataFrame has no {missing[0]!r}: it "
            f"has {', '.join(columns)}. Name the columns to predict from with features."
        )
    return features
