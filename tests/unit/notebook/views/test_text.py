"""The text view, on terminals and off them."""

from __future__ import annotations

import io
import os
import pty
import re

import pytest

from tfos_magic.cluster.runs.state import RunState, rewind
from tfos_magic.notebook.views.text import TextView

from .simulated import RUN, epoch_end, finish, new_state, progress, run_through, tell


def show(view: TextView, state: RunState, steps: int = 10) -> None:
    """Draw a whole run, every change of it."""
    moments = run_through(state, steps=steps)
    view.open(next(moments))
    for moment in moments:
        if moment.phase.ended:
            view.close(moment)
        else:
            view.update(moment)


class Terminal(io.StringIO):
    """Text that believes to be on a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen(written: str) -> list[str]:
    """What a terminal shows of ``written``: a line cleared is a line gone."""
    return [line.split("\r\x1b[2K")[-1] for line in written.split("\n")]


def test_off_a_terminal_there_is_one_line_per_event_however_long_the_run() -> None:
    lines = []
    for steps in (10, 200):
        stream = io.StringIO()
        show(TextView(stream), new_state(), steps)
        lines.append(stream.getvalue().splitlines())
    assert len(lines[0]) == len(lines[1]) == 1 + 1 + 1 + 3 + 1
    start, feed, note, first, _, third, end = lines[1]
    assert start == "Starting on 2 workers"
    assert feed == "train: 1,920 rows · 960 kB · 0.8 s · 2,400 rows/s"
    assert note.startswith("note: BatchNormalization")
    assert first.startswith("epoch 1 of 3 · loss 0.5 · accuracy 0.9 · val_loss 0.6")
    assert third.startswith("epoch 3 of 3")
    assert end.startswith("Trained on 2 workers in ")
    assert not re.search("[\r\x1b]", "\n".join(lines[1]))


def test_off_a_terminal_a_wait_of_some_seconds_is_told_once() -> None:
    now, stream = 100.0, io.StringIO()
    state = RunState("r", "run", "sync", [], started=now, clock=lambda: now)
    view = TextView(stream)
    view.open(state)
    for second in range(12):
        now = 100.0 + second
        state.wait_for(f"agents: {second // 6} of 2", 160.0)
        view.update(state)
    now += 1
    state.wait_for("")
    state.wait_for("rows that Spark has yet to compute")
    view.update(state)
    now += 5
    view.update(state)
    assert stream.getvalue().splitlines()[1:] == [
        "waiting for agents: 0 of 2 (3.0 s, at most 57 s more)",
        "waiting for rows that Spark has yet to compute (5.0 s)",
    ]


def test_a_second_fit_in_the_cell_is_told_from_its_first_epoch() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    for message in (epoch_end(0, epochs=2), epoch_end(1, epochs=2), epoch_end(0, epochs=1, fit=1)):
        view.update(tell(state, message))
    assert [line[:12] for line in stream.getvalue().splitlines()[1:]] == [
        "epoch 1 of 2",
        "epoch 2 of 2",
        "epoch 1 of 1",
    ]


def test_fits_that_are_shorter_than_a_drawing_are_told_all_the_same() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    view.update(tell(state, epoch_end(0, epochs=2)))
    rest = [epoch_end(epoch, epochs=2, fit=fit) for fit in range(3) for epoch in range(2)][1:]
    view.update(tell(state, *rest))
    assert [line[:7] for line in stream.getvalue().splitlines()[1:]] == ["epoch 1", "epoch 2"] * 3
    view.update(tell(state, *(epoch_end(epoch, epochs=4, fit=3) for epoch in range(4))))
    view.update(tell(state, *(epoch_end(epoch, epochs=3, fit=4) for epoch in range(3))))
    told = [line.split()[1] for line in stream.getvalue().splitlines()[7:]]
    assert told == ["1", "2", "3", "4", "1", "2", "3"], "a shorter fit is told whole"


def test_epochs_that_are_trained_again_are_told_again() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    view.update(tell(state, *(epoch_end(epoch, epochs=4) for epoch in range(3))))
    rewind(state)
    for epoch in range(1, 4):
        view.update(tell(state, epoch_end(epoch, epochs=4)))
    told = [line[:7] for line in stream.getvalue().splitlines()[1:]]
    assert told == [f"epoch {number}" for number in (1, 2, 3, 2, 3, 4)]


def test_epochs_have_the_numbers_of_their_fit_however_late_they_are_drawn() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    view.update(tell(state, epoch_end(0, epochs=2), epoch_end(1, epochs=2), progress(0, 2, 1, epochs=4)))
    view.update(tell(state, epoch_end(2, epochs=4), progress(0, 0, 1, epochs=7)))  # initial_epoch=2, and a new fit
    assert [line[:12] for line in stream.getvalue().splitlines()[1:]] == [
        "epoch 1 of 2",
        "epoch 2 of 2",
        "epoch 3 of 4",
    ]
    tell(state, epoch_end(3, epochs=4))
    finish(state)
    view.close(state)
    assert "4 epochs" in stream.getvalue().splitlines()[-1]


def test_output_of_the_cell_is_neither_torn_nor_reordered() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    view.output("half a ", "stdout")
    view.output("line", "stdout")
    view.update(tell(state, epoch_end(0)))
    view.output("more\n", "stdout")
    finish(state)
    view.close(state)
    assert [line[:11] for line in stream.getvalue().splitlines()] == [
        "Starting on",
        "half a line",
        "epoch 1 of ",
        "more",
        "Trained on ",
    ]


def test_errors_of_the_cell_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    view = TextView()
    view.open(new_state())
    view.output("careful\n", "stderr")
    assert capsys.readouterr().err == "careful\n"


def test_a_terminal_shows_one_line_that_is_redrawn_and_ends_as_a_summary() -> None:
    stream = Terminal()
    show(TextView(stream), new_state())
    shown = on_screen(stream.getvalue())
    assert len(shown) == 3
    assert shown[0].startswith("note: BatchNormalization")
    assert shown[1].startswith("Trained on 2 workers")
    assert shown[2] == ""


def test_a_terminal_says_what_is_waited_for_and_for_how_long() -> None:
    now, stream = 100.0, Terminal()
    state = RunState("r", "run", "sync", [], started=now, clock=lambda: now)
    view = TextView(stream)
    view.open(state)
    assert on_screen(stream.getvalue())[-1].endswith(" Starting on 0 workers · waiting for the workers · 0.0 s")
    state.wait_for("agents: 0 of 2", 160.0)
    now = 105.0
    view.update(state)
    assert on_screen(stream.getvalue())[-1] == "waiting for agents: 0 of 2 (5.0 s, at most 55 s more)"


def test_a_terminal_keeps_the_cells_output_above_the_line() -> None:
    stream = Terminal()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    view.output("hello\n", "stdout")
    view.update(state)
    assert [line[:22] for line in on_screen(stream.getvalue())] == ["hello", f"[{'.' * 20}]"]


def test_the_line_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    show(TextView(stream), new_state())
    status = [part for part in stream.getvalue().split("\r\x1b[2K") if part.startswith("[")]
    assert status
    assert max(map(len, status)) <= 39


def test_a_real_terminal_is_recognised() -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as stream:
            TextView(stream).open(new_state())
            assert os.read(ours, 100).startswith(b"\r\x1b[2K[")
    finally:
        os.close(ours)


def test_messages_of_another_run_are_not_shown() -> None:
    stream = io.StringIO()
    state = new_state()
    view = TextView(stream)
    view.open(state)
    state.run_id = RUN + "-other"
    view.update(tell(state, epoch_end(0)))
    assert stream.getvalue() == "Starting on 2 workers\n"
