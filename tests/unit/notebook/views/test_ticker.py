"""How often a view is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.notebook.views.ticker import Throttled

from .simulated import Clock, finish, new_state


class Recorder:
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
