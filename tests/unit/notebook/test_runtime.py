"""What the kernel keeps of a cluster and of a detached run."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster import shared
from tfos_magic.cluster.workers import ClusterPhase, ClusterSpec
from tfos_magic.errors import UsageError
from tfos_magic.notebook import runtime as runtimes
from tfos_magic.notebook.config import TFOS
from tfos_magic.notebook.options import parse
from tfos_magic.notebook.runtime import Runtime
from tfos_magic.notebook.subcommands import COMMANDS


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


IGNORED = {
    "--workers": ("-n 2:8", "-n 2:8 (it has 2, and stays at that)"),
    "--ps": ("--ps 0", "--ps 0 (it has 1)"),
    "--cores": ("--cores 2", "--cores 2 (it has 1)"),
    "--gpus": ("--gpus 1", "--gpus 1 (it has 0)"),
    "--encrypt": ("--encrypt on", "--encrypt on (it has off)"),
    "--start-timeout": ("--start-timeout 5", "--start-timeout 5 (it has 120)"),
    "--spool-gb": ("--spool-gb 3", "--spool-gb 3 (it has half of the free disk)"),
    "--idle-timeout": ("--idle-timeout 600", "--idle-timeout 600 (it has 0)"),
    "--via": ("--via spark", "--via spark (it has the control socket)"),
}


@pytest.fixture
def busy(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """With a running cluster of two workers and a parameter server."""
    monkeypatch.setattr(shared, "is_stopped", lambda session: False)
    cluster: Any = Cluster()
    cluster.phase, cluster.size, cluster.servers = ClusterPhase.RUNNING, 2, ("a server",)
    cluster.spec, cluster.encrypted = ClusterSpec(workers=2, servers=1), False
    runtime.shared.cluster = cluster
    return runtime


@pytest.mark.parametrize(("line", "said"), IGNORED.values())
def test_options_that_a_running_cluster_ignores_are_warned_of(busy: Runtime, line: str, said: str) -> None:
    (text,) = busy.ignored(parse(COMMANDS["start"], line))
    assert text == (
        f"The running cluster ignores {said}. Such options apply when a cluster starts: `%tfos stop`, then run the "
        "cell again."
    )


def test_every_option_of_a_cluster_is_one_that_a_running_cluster_is_asked_about() -> None:
    actions = COMMANDS["start"].parser._actions
    assert {action.option_strings[-1] for action in actions} - {"--help"} == set(IGNORED)


@pytest.mark.parametrize(
    "line",
    ["", "-n 2 --ps 1 --cores 1 --gpus 0 --start-timeout 120", "--encrypt off", "--encrypt auto", "-n 3 --cores 2"],
)
def test_options_that_the_cluster_has_or_that_start_another_are_not_warned_of(busy: Runtime, line: str) -> None:
    assert busy.ignored(parse(COMMANDS["start"], line)) == []


def test_a_number_of_workers_that_may_change_is_told_to_who_asks_for_a_fixed_one(busy: Runtime) -> None:
    cluster: Any = busy.cluster
    cluster.spec, cluster.servers = ClusterSpec(workers=2, most_workers=8), ()
    (text,) = busy.ignored(parse(COMMANDS["start"], "-n 2"))
    assert "-n 2 (it has 2:8)" in text
    assert busy.ignored(parse(COMMANDS["start"], "-n 2:8")) == []


def test_a_setting_that_a_running_cluster_ignores_is_warned_of(
    busy: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    busy.config.cores = 4
    assert (
        "The running cluster ignores TFOS.cores = 4. Such options apply when a cluster starts"
        in capsys.readouterr().out
    )
    busy.config.cores, busy.config.batch_size, busy.config.workers = 1, 64, 2
    assert capsys.readouterr().out == ""


def test_a_session_that_a_cell_makes_has_our_formats_in_the_next(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(runtimes, "register_tfrecord", registered.append)
    monkeypatch.setattr(runtimes, "check_server", lambda *_: None)
    monkeypatch.setattr(runtimes, "_is_session", lambda value: value is not None)
    runtime.namespace.pop("spark", None)
    runtime.note_session()
    for name in ("first", "first", "second"):
        runtime.namespace["spark"] = name
        runtime.note_session()
    assert registered == ["first", "second"]
