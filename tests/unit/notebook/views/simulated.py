"""A run that is told, not trained: the messages a real one sends, folded by the real state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

from tfos_magic.cluster.runs.state import FeedState, RunPhase, RunState, apply
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.errors import ClusterError
from tfos_magic.transport.messages import EpochEnd, Message, Notice, Progress, RunFinished, RunStarted

RUN = "run-1"


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def new_state(world: int = 2) -> RunState:
    """A run at its very start, with a clock of its own at ``state.clock``."""
    workers = [WorkerState(rank, host="127.0.0.1", pid=4000 + rank) for rank in range(world)]
    return RunState(RUN, "digits", "sync", workers, clock=Clock())


def pass_time(state: RunState, seconds: float) -> None:
    assert isinstance(state.clock, Clock)
    state.clock.now += seconds


def tell(state: RunState, *messages: Message) -> RunState:
    for message in messages:
        apply(state, message)
    return state


def progress(rank: int, epoch: int, step: int, *, epochs: int = 3, steps: int = 10, phase: str = "train") -> Progress:
    rows = 64 * (epoch * steps + (step if phase == "train" else steps))
    return Progress(
        RUN, rank, phase, epoch, epochs, step, steps, rows, {"loss": 1 / (1 + epoch + step / (steps or 10))}
    )


def epoch_end(epoch: int, *, epochs: int = 3, loss: float | None = None, fit: int = 0) -> EpochEnd:
    loss = 0.5 / (epoch + 1) if loss is None else loss
    metrics = {"loss": loss, "accuracy": 0.9 + 0.03 * epoch, "val_loss": 0.6 / (epoch + 1), "val_accuracy": 0.91}
    return EpochEnd(RUN, 0, epoch, epochs, metrics, fit=fit)


def finish(state: RunState, status: str = "ok") -> None:
    for worker in state.workers:
        tell(state, RunFinished(RUN, worker.rank, status))
    state.phase = {"ok": RunPhase.DONE, "stopped": RunPhase.STOPPED}.get(status, RunPhase.FAILED)
    state.ended = state.clock()


def run_through(state: RunState, *, steps: int = 10, epochs: int = 3) -> Iterator[RunState]:
    """A whole run, handed out after everything that changes it."""
    yield state
    state.phase = RunPhase.FEEDING
    feed = state.feeds["train"] = FeedState("train")
    for _ in range(4):
        pass_time(state, 0.2)
        feed.rows, feed.bytes, feed.seconds = feed.rows + 480, feed.bytes + 240_000, feed.seconds + 0.2
        yield state
    feed.done = True
    tell(state, *(RunStarted(RUN, worker.rank) for worker in state.workers))
    tell(state, Notice(RUN, 0, "BatchNormalization uses the statistics of each worker's own rows."))
    yield state
    for epoch in range(epochs):
        for step in range(1, steps + 1):
            pass_time(state, 0.1)
            tell(state, *(progress(w.rank, epoch, step, steps=steps, epochs=epochs) for w in state.workers))
            yield state
        tell(state, *(progress(w.rank, epoch, 2, steps=steps, epochs=epochs, phase="validate") for w in state.workers))
        yield state
        tell(state, epoch_end(epoch, epochs=epochs))
        yield state
    finish(state)
    yield state


class ToldRun:
    """As much of a run's handle as widgets need; ``go_on`` tells it up to its next change."""

    def __init__(self, world: int = 2, number: int = 1, **names: float) -> None:
        self.run_id, self.name = f"told-{number}", f"run {number}"
        self.state = new_state(world)
        self.state.run_id, self.state.name = RUN, self.name
        self.state.settings = {name: f"{value:g}" for name, value in names.items()}
        self.request = SimpleNamespace(frames={"train": SimpleNamespace(frame="the DataFrame")})
        self.stops = 0
        self.callbacks: list[Callable[[ToldRun], object]] = []
        self._moments = run_through(self.state)

    def on_change(self, callback: Callable[[ToldRun], object]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def ask_to_stop(self) -> None:
        self.stops += 1

    def go_on(self, times: int = 1000) -> ToldRun:
        for _, _ in zip(range(times), self._moments, strict=False):
            pass
        for callback in self.callbacks:
            callback(self)
        return self


class ToldFeeds:
    """As much of a cluster as a table of feeds needs: ``busy`` is what it refuses with."""

    def __init__(self) -> None:
        self.busy = ""
        self.released: list[object] = []

    def release(self, frame: object) -> bool:
        if self.busy:
            raise ClusterError(self.busy)
        self.released.append(frame)
        return True
