"""A trainer is lost in the middle of an epoch: the run begins again and ends with the weights it would have had."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tests.faults.cells import EPOCHS, KILL, KILL_SERVER, STOP, Watch, furthest, run
from tests.faults.conftest import HEARTBEAT_TIMEOUT
from tests.soak import every
from tfos_magic import TFCluster
from tfos_magic.errors import RunInterrupted, WorkerError, WorkerLost
from tfos_magic.notebook.signals import interruptible


@pytest.mark.parametrize("rank", every(2, [0, 1]), ids=["the chief", "another rank"])
def test_a_killed_trainer_costs_time_and_nothing_else(
    cluster: TFCluster, undisturbed: dict[str, Any], tmp_path: Path, rank: int
) -> None:
    watch = Watch()
    kept, logs = str(tmp_path / "checkpoints"), str(tmp_path / "logs")
    results = run(cluster, KILL, tmp_path / "mark", rank=rank, watch=watch, log_dir=logs, checkpoint_dir=kept)
    assert furthest(results, undisturbed) <= 1e-5
    losses = results["history"].history["loss"]
    assert losses == pytest.approx(undisturbed["history"].history["loss"], abs=1e-5)
    assert [metrics["loss"] for metrics in watch.state.history] == pytest.approx(losses)
    assert watch.state.restarts == 1
    (notice,) = [text for text in watch.state.notices if "SIGKILL" in text]
    assert notice.startswith(f"Worker {rank} was killed by signal 9 (SIGKILL, perhaps out of memory) in epoch 3")
    assert "restarted from epoch 3 (1 of 2 restarts)" in notice
    printed = [int(line.split()[1]) for line in watch.printed.splitlines() if line.startswith("epoch")]
    assert printed == [0, 1, 2, 2, 3]
    events = EventAccumulator(str(tmp_path / "logs" / "train")).Reload().Tensors("epoch_loss")
    assert [event.step for event in events] == list(range(EPOCHS))


@pytest.mark.soak
def test_a_killed_fork_server_costs_time_and_nothing_else(
    cluster: TFCluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    before = [worker.agent.pid for worker in cluster.workers]
    watch = Watch()
    results = run(cluster, KILL_SERVER, tmp_path / "mark", watch=watch)
    assert furthest(results, undisturbed) <= 1e-5
    assert watch.state.restarts == 1
    assert any("ended with the process that it was forked from" in notice for notice in watch.state.notices)
    assert [worker.agent.pid for worker in cluster.workers] == before


@pytest.mark.soak
def test_an_interrupt_while_a_run_begins_again_ends_it_at_once(cluster: TFCluster, tmp_path: Path) -> None:
    watch = Watch(until=lambda state: state.restarts == 1)
    assert seconds_to_end(watch, cluster, KILL, tmp_path / "mark") < 2
    assert watch.state.phase.value == "stopped"


@pytest.mark.soak
def test_after_an_interrupt_a_worker_that_fails_is_not_waited_for_in_vain(cluster: TFCluster, tmp_path: Path) -> None:
    watch = Watch(until=lambda state: "waits" in state.workers[1].log)
    fails = "print('waits', flush=True); time.sleep(3); raise ValueError('after the interrupt')"
    assert seconds_to_end(watch, cluster, fails, tmp_path / "mark") < 30
    assert cluster.run("one = 1", outputs=["one"]) == {"one": 1}


def seconds_to_end(watch: Watch, cluster: TFCluster, fault: str, mark: Path) -> float:
    """How long a run takes to end when it is interrupted at what ``watch`` waits for."""
    interrupted = []

    def interrupt() -> None:
        assert watch.reached.wait(60)
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    saboteur = threading.Thread(target=interrupt, name="saboteur")
    saboteur.start()
    with interruptible(), pytest.raises(RunInterrupted):
        run(cluster, fault, mark, watch=watch)
    saboteur.join()
    return time.monotonic() - interrupted[0]


@pytest.mark.soak
def test_without_restarts_one_error_names_rank_host_signal_and_last_output(cluster: TFCluster, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerLost) as caught:
        run(cluster, "print('last words'); " + KILL, tmp_path / "mark", max_restarts=0)
    assert time.monotonic() - started < 60
    assert caught.value.rank == 1
    for part in ("Worker 1 on 127.0.0.1", "SIGKILL", "--max-restarts is 0", "last words"):
        assert part in str(caught.value)


@pytest.mark.soak
def test_restarts_are_bounded(cluster: TFCluster, tmp_path: Path) -> None:
    watch = Watch()
    with pytest.raises(WorkerLost, match=r"restarted 1 time.* all that --max-restarts allows"):
        run(cluster, "os.unlink(mark); " + KILL, tmp_path / "mark", watch=watch, max_restarts=1)
    assert watch.state.restarts == 1


@pytest.mark.soak
def test_an_exception_of_the_cell_is_never_retried(cluster: TFCluster, tmp_path: Path) -> None:
    watch = Watch()
    with pytest.raises(WorkerError) as caught:
        run(cluster, "raise MemoryError('only once')", tmp_path / "mark", watch=watch)
    assert caught.value.kind == "MemoryError"
    assert watch.state.restarts == 0
    assert "Memory is short" in str(caught.value)


@pytest.mark.soak
def test_a_stopped_trainer_is_noticed_and_replaced(
    cluster: TFCluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    watch = Watch()
    results = run(cluster, STOP, tmp_path / "mark", watch=watch)
    assert furthest(results, undisturbed) <= 1e-5
    (notice,) = [text for text in watch.state.notices if "restarted" in text]
    assert f"Worker 1 did not answer for {HEARTBEAT_TIMEOUT:.0f} s and was ended in epoch 3" in notice


@pytest.mark.soak
def test_a_worker_ten_times_slower_than_the_other_is_waited_for(
    cluster: TFCluster, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    watch = Watch()
    slow = f"time.sleep({HEARTBEAT_TIMEOUT + 2})"
    results = run(cluster, slow, tmp_path / "mark", watch=watch)
    assert furthest(results, undisturbed) <= 1e-5
    assert watch.state.restarts == 0
    assert not watch.state.notices
