"""Controls for a function's arguments, and the runs that they start."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

import ipywidgets

from tfos_magic.cluster.runs.request import simple_values
from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import UsageError, did_you_mean
from tfos_magic.values.suggestions import Suggestion, choosing, suggestions_in
from tfos_magic.widgets.compare import Compare
from tfos_magic.widgets.parts import Progress, StopButton, under_way

LOG_STEPS = 60
_WIDEST = {"max_width": "520px"}
_TONE = "color:var(--jp-error-color1,#d32f2f)"


class Launcher(ipywidgets.VBox):
    """Controls, and buttons that train with their values and stop; the runs that came of it are compared below.

    ``train`` is a function made by :func:`tfos_magic.distributed`, or any that starts a run and gives it, as by
    ``cluster.submit``. ``values`` say what may be chosen, by parameter: ``(low, high)``, of whole numbers or not,
    ``(low, high, "log")``, a list of choices, a bool, a text or a number; a widget with a ``value`` is taken as it is,
    and all else, such as a DataFrame, is passed on. Parameters that are not named have a control where their default is
    simple, and so do calls of ``tfos.suggest_float`` and its like in the function, or in the text of a cell:
    ``Launcher(partial(cluster.submit, cell, frames=…))``. The kernel stays free: runs wait for one another. ``runs``
    are all, the last of them ``run``.
    """

    def __init__(self, train: Callable[..., Any], /, **values: Any) -> None:
        self._submit = getattr(train, "submit", train)
        self.runs: list[Run] = []
        self._suggestions = suggestions_in(_source_of(train))
        self.controls, self._fixed = _controls(train, values, self._suggestions)
        self._button = ipywidgets.Button(description="Train", button_style="primary", icon="play")
        self._button.on_click(self._train)
        self._stop = StopButton()
        self._error = ipywidgets.HTML()
        self._progress, self.compare = Progress(), Compare()
        buttons = ipywidgets.HBox([self._button, self._stop], layout={"align_items": "center"})
        super().__init__([*self.controls.values(), buttons, self._error, self._progress, self.compare])

    @property
    def run(self) -> Run | None:
        """The run that was started last."""
        return self.runs[-1] if self.runs else None

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of the controls, by parameter."""
        return {name: _exact(control) for name, control in self.controls.items()}

    def train(self) -> Run:
        """Start a run with the values chosen, as the button does, behind those that go on."""
        chosen = self.chosen
        with choosing({name: value for name, value in chosen.items() if name in self._suggestions}):
            own = {name: value for name, value in chosen.items() if name not in self._suggestions}
            run = self._submit(**own, **self._fixed)
        if not isinstance(run, Run):
            raise UsageError(
                f"The function gave {type(run).__name__}, not a run: decorate it with tfos_magic.distributed(), or let "
                "it return what cluster.submit(...) gives."
            )
        self.runs.append(run)
        self.compare.add(run, _name(len(self.runs), chosen))
        run.on_change(self._turn)
        self._turn()
        return run

    def _turn(self, _: Any = None) -> None:
        """Show the run that has the workers; the last one where none has, and none waits."""
        run = under_way(self.runs)
        if run is not None and run is not self._progress.run:
            self._progress.run = self._stop.run = run

    def _train(self, _: Any) -> None:
        self._error.value = ""
        try:
            self.train()
        except Exception as error:  # shown where the button is: a callback has no cell
            text = escape(f"{type(error).__name__}: {error}")
            self._error.value = f'<div role="alert" style="{_TONE}">{text}</div>'


def _exact(control: Any) -> Any:
    """The value of a control; of a slider without the rounding of the place that the page has sent."""
    is_place = isinstance(control, ipywidgets.FloatSlider | ipywidgets.FloatLogSlider)
    return float(f"{control.value:.12g}") if is_place else control.value


def _name(number: int, chosen: dict[str, Any]) -> str:
    values = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in chosen.items()
    )
    return f"{number}: {values}" if values else str(number)


def _source_of(train: Callable[..., Any]) -> str:
    """The text of the cell or function that ``train`` starts; empty where it is not known."""
    if isinstance(train, functools.partial):
        given = train.args[0] if train.args else train.func
        return given if isinstance(given, str) else _source_of(given)
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(train)))
        ast.parse(source)
    except (OSError, TypeError, SyntaxError):  # the lines of a lambda need not be whole statements
        return ""
    return source


def _controls(
    train: Callable[..., Any], values: dict[str, Any], suggested: Mapping[str, Suggestion] = MappingProxyType({})
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The controls by name, of parameters in the order of the signature, and the values that have none."""
    parameters = inspect.signature(train).parameters
    defaults = {name: known.default for name, known in parameters.items() if known.default is not known.empty}
    offered: dict[str, Any] = simple_values(defaults)
    for name, suggestion in suggested.items():
        offered[name], defaults[name] = _range_of(suggestion), suggestion.usual
    _refuse_unknown(train, values, {*parameters, *suggested})
    offered |= values
    offered = {name: offered[name] for name in [*parameters, *suggested, *values] if name in offered}
    made = {name: _control(name, value, defaults.get(name)) for name, value in offered.items()}
    controls = {name: control for name, control in made.items() if control is not None}
    return controls, {name: value for name, value in offered.items() if made[name] is None}


def _refuse_unknown(train: Callable[..., Any], values: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise :class:`UsageError` for a value of a name that the function does not take."""
    kinds = {parameter.kind for parameter in inspect.signature(train).parameters.values()}
    unknown = [name for name in values if name not in known]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        hint = did_you_mean(unknown[0], known, f"It takes {', '.join(sorted(known))}.")
        raise UsageError(f"The function takes no {unknown[0]!r}. {hint}")


def _range_of(suggestion: Suggestion) -> Any:
    """What may be chosen, as one would say it to :class:`Launcher`."""
    if suggestion.choices or suggestion.step is not None:
        return list(suggestion.choices) or suggestion.steps
    if suggestion.whole:
        return int(suggestion.low), int(suggestion.high)
    return float(suggestion.low), float(suggestion.high), *(["log"] if suggestion.log else [])


def _control(name: str, value: Any, default: Any) -> Any:
    """The control for what may be chosen; None for a value that is passed on."""
    look = {"description": name, "style": {"description_width": "initial"}, "layout": {"width": "100%", **_WIDEST}}
    if isinstance(value, ipywidgets.ValueWidget):
        return value
    if isinstance(value, tuple):
        return _slider(name, value, default, look)
    if isinstance(value, list):
        if not value:
            raise UsageError(f"{name}=[]: give what may be chosen.")
        return ipywidgets.Dropdown(options=value, value=default if default in value else value[0], **look)
    kinds = {bool: ipywidgets.Checkbox, int: ipywidgets.IntText, float: ipywidgets.FloatText, str: ipywidgets.Text}
    kind = kinds.get(type(value))
    return kind(value=value, **look) if kind else None


def _slider(name: str, bounds: Sequence[Any], default: Any, look: dict[str, Any]) -> Any:
    """A slider between bounds. One of floats has no step: a page would move what code says to the nearest one."""
    logarithmic = len(bounds) == 3 and bounds[2] == "log"
    numbers = bounds[:2] if logarithmic else bounds
    fits = len(numbers) == 2 and all(isinstance(number, int | float) for number in numbers) and numbers[0] < numbers[1]
    if not fits or (logarithmic and numbers[0] <= 0):
        raise UsageError(f"{name}={bounds!r}: give (low, high), or (low, high, 'log') above zero, with low < high.")
    low, high = numbers
    inside = isinstance(default, int | float) and low <= default <= high
    if logarithmic:
        value = default if inside else math.sqrt(low * high)
        if all(isinstance(number, int) for number in numbers):
            steps = {round(low * (high / low) ** (step / LOG_STEPS)) for step in range(LOG_STEPS + 1)}
            return ipywidgets.SelectionSlider(options=sorted({*steps, round(value)}), value=round(value), **look)
        ends = {"min": math.log10(low), "max": math.log10(high)}
        return ipywidgets.FloatLogSlider(value=value, **ends, step=None, readout_format=".3g", **look)
    if all(isinstance(number, int) for number in numbers):
        return ipywidgets.IntSlider(value=default if inside else (low + high) // 2, min=low, max=high, **look)
    value = default if inside else (low + high) / 2
    return ipywidgets.FloatSlider(value=value, min=low, max=high, step=None, readout_format=".3g", **look)
