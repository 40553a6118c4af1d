"""Numbers and choices that a cell asks for by name, within bounds: others can be put in the place of the defaults.

The functions are those of Optuna's trials, so that a cell which trains by itself is one that can be searched over.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from tfos_magic.errors import UsageError

SUGGESTED = "__tfos_suggested__"
"""The name by which what was chosen travels to the cell."""

_ROUNDING = 1e-6
"""Of a step, as Optuna counts them."""
_T = TypeVar("_T")
_for_run: dict[str, Any] = {}
_ask: Callable[[Suggestion], Any] | None = None
_for_now: ContextVar[Mapping[str, Any] | None] = ContextVar("tfos-chosen", default=None)


@dataclass(frozen=True)
class Suggestion:
    """What may be chosen: a number from ``low`` to ``high``, both included, or one of the ``choices``."""

    name: str
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False
    choices: Sequence[Any] = ()
    default: Any = None
    whole: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UsageError(f"A suggestion has a text as its name, not {self.name!r}.")
        for field in ("low", "high", "step", "default"):
            object.__setattr__(self, field, _plain(getattr(self, field)))
        object.__setattr__(self, "choices", [_plain(choice) for choice in self.choices])
        numbers = all(isinstance(bound, int | float) and math.isfinite(bound) for bound in (self.low, self.high))
        if not self.choices and not (numbers and self.low < self.high):
            raise UsageError(f"{self.name!r} is from {self.low!r} to {self.high!r}: give low < high, or choices.")
        if self.whole and any(part % 1 for part in (self.low, self.high, self.step or 1)):
            raise UsageError(f"{self.name!r} is a whole number: give whole bounds, and a whole step.")
        if self.step is not None and self.step <= 0:
            raise UsageError(f"{self.name!r} has the step {self.step!r}: give one above zero.")
        if self.log and (self.low <= 0 or self.step is not None):
            raise UsageError(f"{self.name!r} has log=True: give bounds above zero, and no step.")
        if self.default is not None:
            self.checked(self.default)

    @property
    def value(self) -> Any:
        """What was chosen, or is now by whom the run asks; else the default, else the middle: geometric with ``log``,
        the first of choices."""
        given = chosen()
        if self.name in given:
            return self.checked(given[self.name])
        return self.usual if _ask is None else self.checked(_ask(self))

    @property
    def usual(self) -> Any:
        """What it is where nothing was chosen."""
        if self.default is not None:
            return self.default
        if self.choices:
            return self.choices[0]
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        if self.step is not None:
            middle = self.low + self.step * ((middle - self.low) // self.step)
        return int(middle) if self.whole else float(middle)

    @property
    def steps(self) -> list[Any]:
        """The numbers from ``low`` to ``high`` where there is a ``step``."""
        assert self.step is not None
        numbers = [self.low + self.step * i for i in range(int((self.high - self.low) / self.step + 1e-9) + 1)]
        return [int(number) if self.whole else float(number) for number in numbers]

    def checked(self, value: Any) -> Any:
        """``value`` as it may be. Raises :class:`UsageError` where it may not."""
        value = _plain(value)
        if self.choices:
            if value in self.choices:
                return value
            raise UsageError(f"{self.name!r} is one of {list(self.choices)!r}, and not {value!r}.")
        if not isinstance(value, int | float) or not self.low <= value <= self.high or (self.whole and value % 1):
            kind = "a whole number" if self.whole else "a number"
            raise UsageError(f"{self.name!r} is {kind} from {self.low:g} to {self.high:g}, and not {value!r}.")
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        if abs(steps - round(steps)) > _ROUNDING:
            raise UsageError(f"{self.name!r} is {self.low:g} and steps of {self.step:g} from there, and not {value!r}.")
        return int(value) if self.whole else float(value)


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's own."""
    return value.item() if hasattr(value, "dtype") and getattr(value, "shape", None) == () else value


def suggest_float(
    name: str, low: float, high: float, *, default: float | None = None, step: float | None = None, log: bool = False
) -> float:
    """A number from ``low`` to ``high``: the one that was chosen for this run, else ``default``, else the middle.

    ``log`` makes the middle geometric, ``step`` counts from ``low``. Raises :class:`UsageError` for bounds that are
    none, and for what was chosen outside of them.
    """
    return float(Suggestion(name, low, high, step, log, default=default).value)


def suggest_int(
    name: str, low: int, high: int, *, default: int | None = None, step: int | None = None, log: bool = False
) -> int:
    """As :func:`suggest_float`, of whole numbers."""
    return int(Suggestion(name, low, high, step, log, default=default, whole=True).value)


def suggest_categorical(name: str, choices: Sequence[_T], *, default: _T | None = None) -> _T:
    """One of ``choices``: the one that was chosen for this run, else ``default``, else the first."""
    if not list(choices):
        raise UsageError(f"{name!r} has no choices: give one at least.")
    value: _T = Suggestion(name, choices=list(choices), default=default).value
    return value


@contextmanager
def choosing(values: Mapping[str, Any]) -> Iterator[None]:
    """Let what is suggested meanwhile be ``values``, by name, here and in runs that are asked for meanwhile."""
    token = _for_now.set({**chosen(), **values})
    try:
        yield
    finally:
        _for_now.reset(token)


def chosen() -> dict[str, Any]:
    """What was chosen, to go along with a run."""
    given = _for_now.get()
    return dict(_for_run if given is None else given)


def choose(values: Mapping[str, Any], ask: Callable[[Suggestion], Any] | None = None) -> None:
    """Let what is suggested in this process from now on, in all its threads, be ``values``: those of a run, which has
    what is not among them chosen by ``ask``."""
    global _ask
    _ask = ask
    _for_run.clear()
    _for_run.update(values)


_KINDS = ("suggest_float", "suggest_int", "suggest_categorical")


def suggestions_in(source: str) -> dict[str, Suggestion]:
    """What ``source`` asks for in calls whose arguments are literals, by name, in their order."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _kind(node) in _KINDS]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    found = [suggestion for call in calls if (suggestion := _suggestion(call)) is not None]
    return {suggestion.name: suggestion for suggestion in found}


def _kind(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _suggestion(call: ast.Call) -> Suggestion | None:
    try:
        given = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError:  # computed: what it may be is known when the cell runs
        return None
    places = ("name", "choices") if _kind(call) == "suggest_categorical" else ("name", "low", "high")
    return Suggestion(**dict(zip(places, given, strict=False)), **named, whole=_kind(call) == "suggest_int")
