"""What the line of ``%tfos netbench`` means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.errors import UsageError, did_you_mean
from tfos_magic.notebook.views.time_spent import seconds_by_phase

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def model_of(text: str | None, names: Mapping[str, Any]) -> Any:
    """The notebook's Keras model of that name, or a number of bytes: ``64MB`` or ``1000``. None where nothing is said.

    Raises :class:`UsageError` for what is neither.
    """
    if text is None:
        return None
    if text in names:
        return names[text]
    if number := re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text, re.IGNORECASE):
        return int(float(number[1]) * _UNITS[number[2].upper()])
    models = [name for name, value in names.items() if hasattr(value, "trainable_weights")]
    hint = did_you_mean(text, models, "Give the name of a Keras model, or bytes, such as 64MB.")
    raise UsageError(f"The notebook has no {text!r}. {hint}")


def seconds_computed(last: RunState | None) -> float | None:
    """Those that a step of the last run computed, where it trained by strategy ``sync``, and in one ``fit``."""
    if last is None or last.strategy != "sync" or last.earlier or not last.steps * len(last.history):
        return None
    return seconds_by_phase(last).get("compute", 0.0) / (last.steps * len(last.history)) or None
