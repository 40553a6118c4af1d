"""Runs as handles: their turns, what they tell, and their ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.notebook.views.simulated import RUN, epoch_end, new_state, progress, tell
from tfos_magic.cluster.cluster import TFCluster
from tfos_magic.cluster.map_run import MapRun
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.cluster.runs.submit_options import call_of, request_of
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.cluster.workers import LINE_CHARACTERS
from tfos_magic.errors import CaptureError, DataError, ItemError, RunInterrupted, RunStopped, UsageError, WorkerError
from tfos_magic.spark.local_tables import all_to_spark
from tfos_magic.transport.messages import Output


class Scripted:
    """Stands for the execution of a run: does what it is told to."""

    def __init__(self, work: Callable[[Scripted], dict[str, Any]]) -> None:
        self.state, self._work = new_state(), work
        self.stops = threading.Semaphore(0)

    def execute(self, observer: Any, await_turn: Callable[[Callable[[], None]], None]) -> dict[str, Any]:
        await_turn(lambda: None)
        self.observer = observer
        return self._work(self)

    def stop(self) -> None:
        self.stops.release()


def run_of(work: Callable[[Scripted], dict[str, Any]]) -> Run:
    execution: Any = Scripted(work)
    return Run(execution, RunQueue())


def in_a_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives in a loop of its own: this thread may be in one already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(30)


def stopped(execution: Scripted) -> dict[str, Any]:
    execution.stops.acquire(timeout=10)
    execution.state.phase = RunPhase.STOPPED
    raise RunInterrupted({"model": "of epoch 3"}, "")


def failing(_: Scripted) -> dict[str, Any]:
    raise ValueError("no such luck")


def test_the_names_that_were_asked_back_are_there_when_the_run_has_ended() -> None:
    begin = threading.Event()
    run = run_of(lambda _: {"model": 1} if begin.wait(10) else {}).start()
    assert not run.done
    with pytest.raises(TimeoutError, match="it is still running"):
        run.wait(0.01)
    begin.set()
    assert run["model"] == run.result["model"] == 1
    assert dict(run.result) == run.wait() == {"model": 1}
    with pytest.raises(UsageError, match="'weights' was not requested"):
        run["weights"]


def test_a_run_that_was_stopped_keeps_its_names_and_says_so_to_whoever_waits() -> None:
    run = run_of(stopped).start()
    run.stop()
    assert (run.done, run["model"]) == (True, "of epoch 3")
    with pytest.raises(RunInterrupted):
        run.wait()
    with pytest.raises(RunInterrupted):
        run["weights"]


def test_a_callback_may_stop_the_run_that_calls_it() -> None:
    def train(execution: Scripted) -> dict[str, Any]:
        for _ in range(3):
            execution.observer.update(execution.state)
            time.sleep(0.3)
        return stopped(execution)

    execution: Any = Scripted(train)
    run = Run(execution, RunQueue())
    run.on_change(lambda run: run.stop())
    with pytest.raises(RunInterrupted):
        run.execute()
    assert not execution.stops.acquire(blocking=False), "it was asked once: a second time ends the workers"


def test_an_error_is_raised_where_the_run_is_waited_for() -> None:
    run = run_of(failing).start()
    for ask in (run.wait, lambda: run["model"]):
        with pytest.raises(ValueError, match="no such luck"):
            ask()
    with pytest.raises(ValueError, match="no such luck"):
        run_of(failing).execute()


def test_a_run_can_be_awaited_and_a_stop_is_no_interrupt_of_the_loop() -> None:
    async def end(run: Run) -> dict[str, Any]:
        return await run

    assert in_a_loop(end(run_of(lambda _: {"model": 1}).start())) == {"model": 1}
    run = run_of(stopped).start()
    run.ask_to_stop()
    with pytest.raises(RunStopped):
        in_a_loop(end(run))


def test_waiting_for_a_run_in_a_loop_may_be_given_up_without_ending_the_run() -> None:
    begin = threading.Event()
    run = run_of(lambda _: {"model": 1} if begin.wait(10) else {}).start()

    async def impatient() -> None:
        await asyncio.wait_for(run, 0.01)

    with pytest.raises(TimeoutError):
        in_a_loop(impatient())
    begin.set()
    assert run["model"] == 1


def test_history_has_a_row_for_each_epoch_of_each_fit() -> None:
    def train(execution: Scripted) -> dict[str, Any]:
        tell(execution.state, epoch_end(0, loss=3.0), epoch_end(1, loss=2.0), epoch_end(3, loss=1.0, fit=1))
        return {}

    run = run_of(train)
    assert list(run.history.columns) == ["fit", "epoch"]
    run.execute()
    assert run.history[["fit", "epoch", "loss"]].values.tolist() == [[0, 0, 3.0], [0, 1, 2.0], [1, 3, 1.0]]


def test_fits_that_are_trained_again_after_a_restart_are_in_the_history_once() -> None:
    state = tell(new_state(), epoch_end(0), epoch_end(0, fit=1), epoch_end(0, fit=2))
    assert sorted(state.earlier) == [0, 1]
    tell(state, epoch_end(0, loss=9.0, fit=1))
    assert (sorted(state.earlier), state.fit, state.history[0]["loss"]) == ([0], 1, 9.0)


def test_callbacks_hear_of_changes_and_of_the_end_and_one_that_fails_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[tuple[str, bool]] = []

    def train(execution: Scripted) -> dict[str, Any]:
        for _ in range(100):
            execution.observer.update(execution.state)
        return {}

    run = run_of(train)
    run.on_change(lambda run: heard.append((run.name, run.done)))
    run.on_change(lambda run: [][0])
    forgotten: list[Run] = []
    run.on_change(forgotten.append)()
    run.execute()
    assert heard[0] == (run.name, False)
    assert heard[-1] == (run.name, True)
    assert len(heard) < 20
    assert not forgotten
    assert caplog.text.count("IndexError") == 1
    run.on_change(lambda run: heard.append(("late", run.done)))
    assert heard[-1] == ("late", True)


def test_a_run_shows_itself_as_a_card_and_in_a_line() -> None:
    run = run_of(lambda _: {})
    assert run._repr_mimebundle_() == {"text/plain": repr(run)} == {"text/plain": "<digits: Starting on 2 workers>"}
    run.execute()
    assert "<div" in run._repr_mimebundle_()["text/html"]


def test_runs_have_the_workers_in_the_order_in_which_they_were_asked_for() -> None:
    queue: RunQueue[str] = RunQueue()
    order: list[str] = []
    waited = threading.Event()
    for run_id in "abc":
        queue.join(run_id)

    def have(run_id: str) -> None:
        queue.await_turn(run_id, waited.set)
        order.append(run_id)
        queue.leave(run_id)

    later = [threading.Thread(target=have, args=(run_id,), name=f"tfos-{run_id}") for run_id in "cb"]
    for thread in later:
        thread.start()
    assert waited.wait(10)
    assert not order
    have("a")
    for thread in later:
        thread.join(10)
    assert order == ["a", "b", "c"]


def test_a_run_that_no_longer_waits_lets_those_behind_it_pass() -> None:
    queue: RunQueue[str] = RunQueue()
    queue.join("a")
    queue.join("b")

    def stop() -> None:
        raise RunStopped("asked to")

    with pytest.raises(RunStopped):
        queue.await_turn("b", stop)
    queue.leave("b")
    queue.join("c")
    queue.leave("a")
    queue.await_turn("c", stop)


def test_a_function_is_called_with_what_it_takes_of_names_and_frames() -> None:
    def train(data: Any, *, rate: float = 0.1) -> None: ...

    assert call_of(train, "fit", ["rate", "data", "other"]) == "returned_ = fit(rate=rate, data=data)"
    assert call_of(lambda **everything: None, "f", ["a", "b"]).endswith("f(a=a, b=b)")
    with pytest.raises(UsageError, match="train takes 'data', which is neither in names nor in frames"):
        call_of(train, "train", ["rate"])
    request = request_of(train, names={"data": 3}, outputs=["x"], batch_size=8, seed=1)
    assert (request.batch_size, request.seed, request.outputs) == (8, 1, ["x", "returned_"])
    assert request.names == {"data": 3, "train": train}


def test_an_option_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no option 'batchsize'\. Did you mean 'batch_size'\?"):
        request_of("x = 1", batchsize=3)


def test_what_is_called_as_a_function_is_named_in_the_error() -> None:
    with pytest.raises(UsageError, match="the function takes 'x'"):
        call_of(Nameless(), "f", [])


class Nameless:
    """A callable without a name."""

    def __call__(self, x: int) -> int:
        return x


def test_a_slow_callback_holds_nothing_up_and_one_may_wait_for_the_run() -> None:
    def work(execution: Scripted) -> dict[str, Any]:
        for _ in range(50):
            execution.observer.update(execution.state)
        return {"model": 1}

    run, waited = run_of(work), []
    run.on_change(lambda _: time.sleep(0.3))
    run.on_change(lambda run: waited.append(run.wait(10)))
    begun = time.monotonic()
    assert run.start().wait(10) == {"model": 1}
    assert time.monotonic() - begun < 2.0
    deadline = time.monotonic() + 10
    while not waited and time.monotonic() < deadline:
        time.sleep(0.01)
    assert waited[0] == {"model": 1}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 32.0),
        ("batch_size", "32"),
        ("batch_size", 0),
        ("seed", 1.0),
        ("max_restarts", "1"),
        ("keep_checkpoints", True),
        ("matrix", "yes"),
        ("shuffle", "no"),
    ],
)
def test_options_of_another_type_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} is"):
        request_of("1", **{option: value})


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    request = request_of("1", batch_size=np.int64(16), seed=np.int32(3), shuffle=np.bool_(False))
    assert (request.batch_size, request.seed, request.shuffle) == (16, 3, False)
    assert {type(request.batch_size), type(request.seed)} == {int}


def test_a_name_that_the_code_does_not_define_is_refused_before_anything_runs() -> None:
    assert request_of("model = 1", outputs="model").outputs == ["model"]
    with pytest.raises(CaptureError, match="Did you mean 'model'"):
        request_of("model = 1", outputs=["modl"])
    for cell in ("from math import *", "exec('x = 1')", "def f():\n    global x\n    x = 1\nf()", "import x"):
        assert request_of(cell, outputs=["x"]).outputs == ["x"]


def test_what_is_no_dataframe_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="DataFrame 'train' is ndarray"):
        request_of("1", frames={"train": np.ones(3)})


def test_of_a_line_without_an_end_the_last_part_is_kept() -> None:
    state = new_state()
    for _ in range(3):
        tell(state, Output(RUN, 0, "stdout", "x" * 100_000))
    assert {len(line) for line in state.workers[0].log} == {LINE_CHARACTERS}


def test_the_first_workers_prints_are_printed_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    def printing(execution: Scripted) -> dict[str, Any]:
        execution.observer.output("hello from a worker\n", "stdout")
        execution.observer.output("careful\n", "stderr")
        return {}

    run_of(printing).execute()
    assert capsys.readouterr() == ("hello from a worker\n", "careful\n")


def test_names_and_frames_are_dicts() -> None:
    with pytest.raises(UsageError, match="names is list: give a dict"):
        request_of("x = 1", names=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="frames is int: give a dict"):
        all_to_spark(3, None)  # type: ignore[arg-type]


def test_an_items_error_names_the_worker_of_the_cluster_alone() -> None:
    cause = WorkerError("boom", rank=0, host="127.0.0.1", kind="ValueError", cell_lines="-> 1 raise")
    told = str(ItemError(2, 5, [1], cause))
    assert told.startswith("items[2] = 5, on worker 1: ValueError: boom")
    assert "raise" in told
    assert "worker 0" not in told


def test_a_state_shows_itself_in_a_line() -> None:
    assert len(repr(new_state())) < 120
    state = tell(new_state(), epoch_end(0), epoch_end(0, fit=1), progress(0, 0, 1, epochs=0, phase="validate"))
    assert repr(state) == "<state of digits: starting, 1 of 3 epochs>"


def test_runs_that_wait_know_how_many_are_before_them() -> None:
    queue: RunQueue[Run] = RunQueue()
    executions = [Scripted(stopped) for _ in range(3)]
    runs = [Run(execution, queue).start() for execution in executions]  # type: ignore[arg-type]
    assert [run.state.ahead for run in runs] == [0, 1, 2]
    runs[0].stop()
    deadline = time.monotonic() + 10
    while runs[2].state.ahead > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert runs[2].state.ahead == 1
    for run in runs[1:]:
        run.stop()


def test_a_map_shows_how_many_of_its_items_failed() -> None:
    def item(_: Scripted) -> dict[str, Any]:
        _.state.phase = RunPhase.FAILED
        raise ValueError("no such luck")

    mapped = object.__new__(MapRun)
    mapped.request = request_of("1", name="fit 0")
    mapped.runs = [run_of(item), run_of(lambda _: {})]
    assert repr(mapped) == "<fit: 0 of 2 items have ended, 2 under way>"
    with pytest.raises(ValueError, match="no such luck"):
        mapped.runs[0].execute()
    assert repr(mapped) == "<fit: 1 of 2 items have ended, 1 failed, 1 under way>"


class Documented:
    """An observer as it is documented: no more than these two."""

    def __init__(self) -> None:
        self.phases: list[RunPhase] = []
        self.printed: list[tuple[str, str]] = []

    def update(self, state: Any) -> None:
        self.phases.append(state.phase)

    def output(self, text: str, stream: str) -> None:
        self.printed.append((text, stream))


def test_an_observer_needs_no_more_than_is_documented() -> None:
    def work(execution: Scripted) -> dict[str, Any]:
        execution.observer.update(execution.state)
        execution.observer.output("a line\n", "stdout", 0)
        return {"a": 1}

    execution: Any = Scripted(work)
    observer: Any = Documented()
    assert Run(execution, RunQueue(), observer).execute() == {"a": 1}
    assert observer.phases == [execution.state.phase]
    assert observer.printed == [("a line\n", "stdout")]


class Failing(Observer):
    """Cannot show a run, in one of its moments."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def open(self, state: Any) -> None:
        if self._moment == "open":
            raise RuntimeError("the display is gone")

    def close(self, state: Any) -> None:
        if self._moment == "close":
            raise RuntimeError("the display is gone")


@pytest.mark.parametrize("moment", ["open", "close"])
@pytest.mark.parametrize("detached", [True, False])
def test_a_run_that_cannot_be_shown_ends_and_lets_the_next_one_begin(moment: str, detached: bool) -> None:
    queue: RunQueue[Run] = RunQueue()
    first: Any = Scripted(lambda _: {"a": 1})
    run = Run(first, queue, Failing(moment))
    with pytest.raises(RuntimeError, match="the display is gone"):
        run.start().wait(20) if detached else run.execute()
    assert not queue.runs
    second: Any = Scripted(lambda _: {"a": 2})
    assert Run(second, queue, Observer()).execute() == {"a": 2}


def test_what_tells_runs_apart_is_short_and_no_secret() -> None:
    names = {"rate": 0.1, "layers": 3, "city": "Bonn", "text": "x" * 200, "api_token": "ghp", "db_password": "hunter2"}
    request = request_of("pass", names={**names, "AWS_SECRET_ACCESS_KEY": "k"}, name="run", detached=False)
    assert {"rate", "layers", "city"} < request.settings.keys()
    assert not {"text", "api_token", "db_password", "AWS_SECRET_ACCESS_KEY"} & request.settings.keys()


def test_a_forced_stop_lets_no_run_that_waits_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start another cluster, after the user has ended this one."""
    asked: list[str] = []
    queue: RunQueue[Any] = RunQueue()
    for name in ("under way", "next", "last"):
        queue.join(SimpleNamespace(ask_to_stop=partial(asked.append, name)))
    monkeypatch.setattr(WorkerGroup, "stop", lambda cluster, force, timeout: asked.append("cluster"))
    made = TFCluster.__new__(TFCluster)
    made.queue = queue
    made.stop(force=True)
    assert asked == ["next", "last", "cluster"]
