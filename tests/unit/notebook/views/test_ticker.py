"""How often a view is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.prefixed import PrefixedView
from tfos_magic.notebook.views.ticker import Throttled
from tfos_magic.notebook.views.view import View

from .simulated import Clock, finish, new_state


class Recorder(View):
    """A view that writes down what it is asked to do, and may be slow at it."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self.calls: list[str] = []
        self._clock, self._seconds = clock, seconds

    def open(self, state: RunState) -> None:
        self.calls.append("open")

    def update(self, state: RunState) -> None:
        self.calls.append("update")
        self._clock.now += self._seconds

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        self.calls.append(f"{stream}:{text}")

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        self.calls.append(f"show:{sorted(data)}")

    def tensorboard(self, url: str) -> bool:
        return False

    def detach(self, stop: Callable[[], Any]) -> None:
        self.calls.append("detach")

    def again(self, state: RunState) -> None:
        self.calls.append("again")

    def close(self, state: RunState) -> None:
        self.calls.append(f"close:{state.phase.value}")


def test_a_thousand_updates_in_a_second_are_drawn_at_most_four_times() -> None:
    clock = Clock()
    view = Recorder(clock)
    throttled = Throttled(view, clock=clock)
    state = new_state()
    throttled.open(state)
    for _ in range(1000):
        clock.now += 0.001
        throttled.update(state)
    assert 3 <= view.calls.count("update") <= 4


def test_the_end_is_drawn_once_even_right_after_an_update() -> None:
    clock = Clock()
    view = Recorder(clock)
    throttled = Throttled(view, clock=clock)
    state = new_state()
    throttled.open(state)
    throttled.update(state)
    finish(state)
    throttled.close(state)
    throttled.close(state)
    throttled.update(state)
    assert view.calls == ["open", "close:done"]


def test_output_is_passed_on_at_once_and_in_order() -> None:
    clock = Clock()
    view = Recorder(clock)
    throttled = Throttled(view, clock=clock)
    throttled.open(new_state())
    for text in ("a", "b", "c"):
        throttled.output(text, "stdout")
    assert view.calls == ["open", "stdout:a", "stdout:b", "stdout:c"]


def test_a_slow_view_is_drawn_less_often() -> None:
    clock = Clock()
    view = Recorder(clock, seconds=0.75)
    throttled = Throttled(view, clock=clock)
    state = new_state()
    throttled.open(state)
    while clock.now < 10:
        clock.now += 0.01
        throttled.update(state)
    assert 9 <= view.calls.count("update") <= 10


def test_of_text_so_many_lines_are_passed_on_and_the_rest_is_counted() -> None:
    clock = Clock()
    view = Recorder(clock)
    throttled = Throttled(view, clock=clock, lines=5)
    throttled.output("begun ", "stdout")
    for start in range(0, 12, 3):
        throttled.output("".join(f"line {line}\n" for line in range(start, start + 3)), "stdout")
    state = new_state()
    finish(state)
    throttled.close(state)
    assert view.calls == [
        "stdout:begun ",
        "stdout:line 0\nline 1\nline 2\n",
        "stdout:line 3\nline 4\n",
        "stdout:… 7 lines left out; %tfos logs has the last.\n",
        "close:done",
    ]


def test_text_of_all_workers_is_cut_and_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    throttled = Throttled(PrefixedView(), lines=3)
    for rank in (0, 1, 0):
        throttled.output("one\ntwo\n", "stdout", rank)
    throttled.close(new_state())
    assert capsys.readouterr().out.splitlines() == [
        "[worker:0] one",
        "[worker:0] two",
        "[worker:1] one",
        "… 3 lines left out; %tfos logs has the last.",
    ]


def test_a_line_without_an_end_is_cut() -> None:
    clock = Clock()
    view = Recorder(clock)
    throttled = Throttled(view, clock=clock)
    for _ in range(20):
        throttled.output("x" * 100_000, "stdout")
    assert sum(len(call) for call in view.calls) < 1_000_200
    state = new_state()
    finish(state)
    throttled.close(state)
    assert view.calls[-2] == "stdout:… text left out; %tfos logs has the last.\n"
