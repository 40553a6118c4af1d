"""What the kernel keeps of a cluster and of a detached run."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster import shared
from tfos_magic.cluster.workers import ClusterPhase
from tfos_magic.errors import UsageError
from tfos_magic.notebook import runtime as runtimes
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.options import COMMANDS, parse
from tfos_magic.notebook.runtime import Runtime


class Cluster:
    """Stands for a TFCluster and remembers what it was told."""

    phase = ClusterPhase.FAILED
    servers: tuple[Any, ...] = ()

    def __init__(self, spark: Any = None, **options: Any) -> None:
        self.spark, self.options, self.stopped = spark, options, False

    def start(self, wait_for_trainers: bool) -> None:
        """Nothing is started."""

    def stop(self, force: bool = False) -> None:
        self.stopped = True


class Detached:
    """Stands for a run that was detached and goes on."""

    name, run_id = "run 1", "1"
    request = SimpleNamespace(detached=True, alone=False, outputs=["model"])

    def __init__(self) -> None:
        self.stopped = self.done = False
        self.runs = [self]

    def stop(self, timeout: float) -> None:
        self.stopped = True


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr(runtimes, "TFCluster", Cluster)
    monkeypatch.setattr(runtimes, "end_progress_bar", lambda session: False)
    made = Runtime({}, TFOS())
    monkeypatch.setattr(made, "session", lambda slots: f"session of {slots}")
    return made


def test_a_new_cluster_takes_the_defaults_that_no_option_overrides(runtime: Runtime) -> None:
    runtime.config.workers, runtime.config.cores = 3, 2
    cluster: Any = runtime.start(parse(COMMANDS["start"], "--ps 1"))
    assert cluster.spark == "session of 9"
    assert {name: cluster.options[name] for name in ("workers", "servers", "cores")} == {
        "workers": 3,
        "servers": 1,
        "cores": 2,
    }


def test_between_two_numbers_of_workers_a_cluster_takes_what_is_free_and_stays(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "is_stopped", lambda session: False)
    args = parse(COMMANDS["start"], "-n 2:4")
    cluster: Any = runtime.start(args)
    assert cluster.spark == "session of 5"
    assert (cluster.options["workers"], cluster.options["most_workers"]) == (2, 4)
    cluster.phase, cluster.size = ClusterPhase.RUNNING, 3
    assert runtime._wanted(args.workers) is None
    cluster.size = 5
    assert runtime._wanted(args.workers) == 2
    with pytest.raises(UsageError, match="-n takes MIN:MAX, the smaller number first, not '4:2'"):
        parse(COMMANDS["start"], "-n 4:2")
    with pytest.raises(UsageError, match="'' is not a whole number of at least 1"):
        parse(COMMANDS["start"], "-n 2:")


def test_a_cluster_that_failed_is_replaced_without_waiting_for_the_detached_run_that_asks_for_it(
    runtime: Runtime,
) -> None:
    failed: Any = Cluster()
    run: Any = Detached()
    runtime.shared.cluster = failed
    runtime.shared.queue.join(run)
    assert runtime.start(parse(COMMANDS["start"], "")) is not failed
    assert failed.stopped
    assert not run.stopped


def test_stopping_the_cluster_stops_the_detached_run_first(runtime: Runtime) -> None:
    cluster: Any = Cluster()
    run: Any = Detached()
    runtime.shared.cluster = cluster
    runtime.shared.queue.join(run)
    assert runtime.stop()
    assert run.stopped
    assert cluster.stopped


def test_an_interrupt_means_after_a_session_was_made_what_it_meant_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(slots: int) -> str:
        signal.signal(signal.SIGINT, lambda *_: None)  # as PySpark does, to cancel all jobs
        return "a session"

    monkeypatch.setattr(runtimes, "make_local_session", make)
    monkeypatch.setattr(Runtime, "known_session", lambda self: None)
    before = signal.getsignal(signal.SIGINT)
    assert Runtime({}, TFOS()).session(3) == "a session"
    assert signal.getsignal(signal.SIGINT) is before


def test_names_that_a_waiting_run_brings_back_are_warned_of(runtime: Runtime) -> None:
    run: Any = Detached()
    runtime.shared.queue.join(run)
    assert runtime.detached == [run]
    assert runtime.warnings_for(["rate", "model"])[0].startswith("model goes along as it is now. run 1, which has not")
    assert runtime.warnings_for(["rate"]) == []
