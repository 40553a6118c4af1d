"""Which columns become which inputs of a model, and which of its outputs become which columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.frames.inference.loading import Input, Loaded

_NUMBERED = re.compile(r"output_(\d+)")


def taken_by(model: Loaded, inputs: Sequence[str], features: Sequence[str]) -> list[tuple[Input, list[int]]]:
    """For each input of the model the places of its columns among ``features``, which are for ``inputs`` where named.

    Raises :class:`UsageError` where that cannot be told.
    """
    known = list(model.inputs)
    if inputs:
        places = _by_names(inputs, model)
    elif len(known) == 1:
        return [(model.inputs[known[0]], list(range(len(features))))]
    elif len(features) != len(known):
        raise UsageError(
            f"the model has {len(known)} inputs and {len(features)} features are given: one for each of "
            f"{_input_list(model)}"
        )
    elif model.ordered and all(name not in features or features.index(name) == i for i, name in enumerate(known)):
        places = list(range(len(features)))
    else:
        places = _by_names(features, model)
    return [(model.inputs[name], [place]) for name, place in zip(known, places, strict=True)]


def by_name(made: Any, names: Sequence[str]) -> dict[str, Any]:
    """A model's outputs under the names that the user gave. Raises :class:`UsageError` where these are others."""
    values = dict(made) if isinstance(made, Mapping) else {}
    listed = list(values.values()) or (list(made) if isinstance(made, (list, tuple)) else [made])
    if len(names) < len(values) and set(names) <= set(values):
        return {name: values[name] for name in names}
    if len(listed) != len(names):
        known = f" ({', '.join(values)})" if values else ""
        raise UsageError(f"the model has {len(listed)} outputs{known}, output names {len(names)}: name each one")
    if not values or len(names) == 1:
        return dict(zip(names, listed, strict=True))
    if set(names) == set(values):
        return {name: values[name] for name in names}
    numbers = {name: match for name in values if (match := _NUMBERED.fullmatch(name))}
    if len(numbers) < len(values):
        raise UsageError(
            f"the model's outputs have the names {', '.join(values)}: output=[…] takes these, and the columns are "
            "renamed afterwards"
        )
    in_order = sorted(values, key=lambda name: int(numbers[name][1]))
    return {name: values[each] for name, each in zip(names, in_order, strict=True)}


def by_own_name(made: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """A model's outputs under the names that ``columns`` gives for its own; its only one goes by any name. Raises
    :class:`UsageError` where it has no such output."""
    values = dict(made) if isinstance(made, Mapping) else {}
    if len(columns) == 1 and (len(values) == 1 or not isinstance(made, (Mapping, list, tuple))):
        return dict.fromkeys(columns.values(), next(iter(values.values()), made))
    if missing := [name for name in columns if name not in values]:
        known = f"it has {', '.join(sorted(values))}" if values else "its outputs have no names"
        raise UsageError(f"the model has no output {', '.join(missing)}: {known}")
    return {column: values[name] for name, column in columns.items()}


def _by_names(named: Sequence[str], model: Loaded) -> list[int]:
    if sorted(named) != sorted(model.inputs):
        raise UsageError(
            f"the model takes {_input_list(model)} by name, and features has {', '.join(named)}: give columns of these "
            f"names, or a dict of columns by input, features={{{next(iter(model.inputs))!r}: 'column', …}}"
        )
    return [list(named).index(name) for name in model.inputs]


def _input_list(model: Loaded) -> str:
    return ", ".join(f"{name} ({_shape(taken)})" for name, taken in model.inputs.items())


def _shape(taken: Input) -> str:
    return f"{taken.dtype}[{','.join('?' if length is None else str(length) for length in taken.shape)}]"
