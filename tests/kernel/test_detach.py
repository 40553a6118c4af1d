"""``--detach``: the cell returns a handle, the run goes on, and the notebook is free."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.kernel.kernel_driver import Kernel, train_cell

TALK = """
import time
for i in range(6):
    print("said", i)
    time.sleep(0.3)
"""


def test_the_notebook_is_free_while_a_detached_run_trains_and_its_handle_gives_the_results(kernel: Kernel) -> None:
    first = kernel.run(train_cell("--label y --detach"))
    number = int(first.text.partition("<run ")[2].split()[0].strip(":>,"))
    assert not kernel.run("run.wait(60)").error
    started = kernel.run(train_cell("--label y --detach -o history,model", epochs=3))
    assert not started.error, started.traceback
    assert f"<run {number + 1}" in started.text
    assert kernel.run("print('free')").text.strip() == "free"
    result = kernel.run("print(len(run['history'].history['loss']), run['model'].count_params(), run.done)")
    assert result.text.strip() == "3 25 True", result.traceback
    assert "history" not in kernel.run("print([n for n in ('history', 'model') if n in globals()])").text
    assert "was not requested" in kernel.run("run['weights']").traceback


def test_what_a_detached_run_prints_goes_to_the_cell_that_started_it_and_to_no_other(kernel: Kernel) -> None:
    first = kernel.submit(f"{train_cell('--label y --detach', epochs=1)}{TALK}")
    kernel.finish(first)
    second = kernel.submit("import time; time.sleep(3); print('mine')")
    own, other = "", ""
    while not ("said 5" in own and "mine" in other):
        message = kernel.client.get_iopub_msg(timeout=30)
        text = message["content"].get("text", "") if message["msg_type"] == "stream" else ""
        parent = message["parent_header"].get("msg_id")
        own, other = own + text * (parent == first), other + text * (parent == second)
    assert "said" not in other
    assert not kernel.run("run.wait(30)").error


@pytest.mark.soak
def test_a_second_run_waits_for_its_turn_and_stop_ends_the_first(kernel: Kernel) -> None:
    assert not kernel.run(train_cell("--label y --detach long", epochs=100_000)).error
    assert not kernel.run(train_cell("--label y --detach second", epochs=2)).error
    assert not kernel.run(train_cell("--label y --detach third", epochs=2)).error
    kernel.run("import time\nwhile not len(long.history): time.sleep(0.1)", timeout=30)
    assert kernel.run("print(second.phase.value, third.phase.value)").text.strip() == "queued queued"
    status = kernel.run("%tfos status").text
    assert "Waiting for 2 workers" in status
    assert kernel.run("third.stop(); print(third.phase.value)").text.strip() == "stopped"
    assert ": Training" in kernel.run("%tfos status").text
    assert kernel.run("long.wait(0.1)").error == "TimeoutError"
    started = time.monotonic()
    assert not kernel.run("long.stop()").error
    assert time.monotonic() - started < 5
    assert kernel.run("long.wait()").error == "RunInterrupted"
    followed = kernel.run(
        "second.wait(30); print(list(second.history.columns), len(second.history), second.phase.value)"
    )
    assert followed.text.strip() == "['fit', 'epoch', 'loss'] 2 done", followed.traceback
    assert not kernel.run(train_cell("--label y")).error


def test_an_error_of_a_detached_run_is_raised_where_it_is_waited_for(kernel: Kernel) -> None:
    assert not kernel.run("%%tfos_train --detach\nraise ValueError('no such luck')\n").error
    result = kernel.run("run.wait()")
    assert result.error == "WorkerError"
    assert "no such luck" in result.traceback


BUSY = """
import threading
slots = spark.sparkContext.defaultParallelism
def hold():
    try:
        spark.sparkContext.parallelize(range(slots), slots).foreach(lambda _: __import__("time").sleep(120))
    except Exception:
        pass  # it is cancelled
holder = threading.Thread(target=hold)
holder.start()
from tfos_magic.spark.session import busy_cores
import time
while busy_cores(spark) < slots:
    time.sleep(0.05)
"""


@pytest.mark.soak
def test_a_start_that_waits_for_slots_is_stopped_at_once_and_not_scaled(kernel: Kernel) -> None:
    kernel.run("%tfos stop")
    assert not kernel.run(BUSY).error
    assert not kernel.run(train_cell("--label y --detach")).error
    waiting = "while 'free slots' not in str(run.state.awaited): time.sleep(0.05)"
    assert not kernel.run(waiting).error
    assert "The cluster is still starting" in kernel.run("%tfos scale 1").traceback
    stopped = kernel.run("%tfos stop")
    assert "has ended" in stopped.text
    assert kernel.run("print(run.phase.value, holder.is_alive())").text.strip() == "stopped True"
    starting = kernel.submit("%tfos start -n 2")
    kernel.finish(starting, until="waiting for free slots of Spark")
    os.kill(kernel.pid, signal.SIGINT)
    interrupted = kernel.finish(starting)
    assert interrupted.traceback == "Interrupted: %tfos start was interrupted. Nothing that it started is left running."
    assert "its start was stopped" in kernel.run("%tfos status").text
    assert not kernel.run("spark.sparkContext.cancelAllJobs(); holder.join(30)").error
    assert not kernel.run(train_cell("--label y")).error


def test_stopping_the_cluster_ends_a_detached_run_first(kernel: Kernel) -> None:
    assert not kernel.run(train_cell("--label y --detach", epochs=100_000)).error
    assert "has ended" in kernel.run("%tfos stop").text
    assert kernel.run("run.wait(5)").error in ("RunInterrupted", "ClusterError")
