"""TensorFlowOnSpark's API in a notebook, and what an interrupt leaves of a program."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.kernel.kernel_driver import Kernel
from tests.ported.test_program import CONF

pytestmark = pytest.mark.timeout(280)
DEFINED = """
import tfos_magic.tensorflowonspark
tfos_magic.tensorflowonspark.install()
from tensorflowonspark import TFCluster
def slow(args, ctx):
    import time
    feed, total = ctx.get_data_feed(), 0
    while not feed.should_stop():
        total += sum(map(len, feed.next_batch(2)))
        print("had", total, flush=True)
        time.sleep(args)
def double(args, ctx):
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([2 * row for row in feed.next_batch(5)])
"""
SESSION = f"""
from pyspark import SparkConf, SparkContext
sc = SparkContext(conf=SparkConf().setAll({list(CONF.items())!r}))
"""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""


def _ours(kernel: Kernel) -> list[str]:
    """What still runs of a cluster's agents and trainers, once it has had time to end."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not (left := [command for command in map(_command, kernel.processes()) if "-m tfos_magic" in command]):
            break
        time.sleep(0.5)
    return left


@pytest.mark.soak
def test_a_notebook_feeds_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    try:
        started = kernel.run(SESSION + DEFINED)
        assert not started.error, started.traceback
        kernel.run("cluster = TFCluster.run(sc, slow, 0.5, 2, 0, input_mode=TFCluster.InputMode.SPARK)")
        fed = kernel.submit("cluster.train(sc.parallelize(range(4000), 4).map(lambda i: bytes(100_000)), 1)")
        time.sleep(4)
        kernel.manager.interrupt_kernel()
        interrupted = kernel.finish(fed)
        assert interrupted.error == "KeyboardInterrupt", interrupted.traceback
        assert interrupted.seconds < 15
        ended = kernel.run("cluster.shutdown(grace_secs=5)")
        assert ended.seconds < 30
        assert not ended.error, ended.traceback
        kernel.run("cluster = TFCluster.run(sc, double, 0, 2, 0, input_mode=TFCluster.InputMode.SPARK)")
        doubled = kernel.run("print(cluster.inference(sc.parallelize(range(30), 3)).sum()); cluster.shutdown()")
        assert "870" in doubled.text, doubled.traceback
        assert not _ours(kernel)
    finally:
        kernel.end()


@pytest.mark.soak
def test_a_program_that_is_interrupted_ends_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"{SESSION}{DEFINED}\n"
        "cluster = TFCluster.run(sc, slow, 0.5, 2, 0, input_mode=TFCluster.InputMode.SPARK)\n"
        "cluster.train(sc.parallelize(range(4000), 4).map(lambda i: bytes(100_000)), 1)\ncluster.shutdown()\n"
    )
    command = [sys.executable, "-m", "tfos_magic.tensorflowonspark", "program.py"]
    program = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert program.stdout is not None
    said = ""
    while "had" not in said and (line := program.stdout.readline()):
        said += line
    below = psutil.Process(program.pid).children(recursive=True)
    program.send_signal(signal.SIGINT)
    said += program.communicate(timeout=60)[0]
    assert program.returncode in (1, 130, -signal.SIGINT), said[-3000:]
    assert "KeyboardInterrupt" in said
    _, alive = psutil.wait_procs(below, 20)
    assert not [process.cmdline() for process in alive], json.dumps(said[-3000:])
