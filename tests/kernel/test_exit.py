"""However the kernel goes, nothing stays behind."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.kernel.kernel_driver import DAWDLE, SESSION, Kernel, command_of, train_cell
from tests.soak import every

LIMIT_SECONDS = 10.0
SMALL_SESSION = SESSION.replace("local[4]", "local[2]")  # a worker, and a slot that feeds it


def _restart(kernel: Kernel) -> None:
    kernel.manager.restart_kernel(now=False)


def _shutdown(kernel: Kernel) -> None:
    kernel.manager.shutdown_kernel(now=False)


def _terminate(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGTERM)


def _kill(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGKILL)


def _be_idle(kernel: Kernel) -> None:
    _run(kernel, train_cell("-n 1 --label y --log-dir runs"))


def _train(kernel: Kernel) -> None:
    kernel.finish(kernel.submit(train_cell("-n 1 --label y", epochs=100_000)), until="epoch 2 of")


def _feed(kernel: Kernel) -> None:
    """Be within a DataFrame that takes a minute to compute."""
    mark, deadline = kernel.folder / "computing", time.monotonic() + 60
    _run(kernel, DAWDLE)
    kernel.submit(train_cell("-n 1 --label y").replace("fit(train", "fit(slow"))
    while not mark.exists():
        assert time.monotonic() < deadline, "Spark did not begin to compute within 60 s"
        time.sleep(0.05)


def _save(kernel: Kernel) -> None:
    """Be within checkpoints that are large and come after every step."""
    cell = train_cell("-n 1 --label y --checkpoint-dir kept --checkpoint-every 1", epochs=100_000)
    kernel.submit(cell.replace("Dense(4,", "Dense(1_000_000,"))
    deadline = time.monotonic() + 60
    while not list(kernel.folder.glob("kept/run-*/*.npz")):
        assert time.monotonic() < deadline, "no checkpoint was written within 60 s"
        time.sleep(0.05)


# Restarting and shutting down are the same request to a kernel, so each is seen at one moment.
@pytest.mark.parametrize(
    ("way", "moment"),
    every(
        7,
        [
            (_kill, _train),
            (_shutdown, _be_idle),
            (_restart, _train),
            (_terminate, _feed),
            (_terminate, _save),
            (_kill, _be_idle),
            (_kill, _feed),
        ],
    ),
    ids=lambda value: value.__name__.strip("_"),
)
def test_nothing_is_left_ten_seconds_after_the_kernel_goes(
    way: Callable[[Kernel], None],
    moment: Callable[[Kernel], None],
    new_kernel: Callable[..., Kernel],
    tmp_path: Path,
) -> None:
    """Of a cluster that was fed, or is just being fed, and of a TensorBoard."""
    spool, temporary = tmp_path / "spool", tmp_path / "tmp"
    spool.mkdir()
    temporary.mkdir()
    kernel = new_kernel(TMPDIR=str(temporary))
    _run(kernel, "%load_ext tfos_magic", f"%config TFOS.spool_dir = {str(spool)!r}", SMALL_SESSION)
    _run(kernel, "%tfos tensorboard runs --link")
    moment(kernel)
    processes = [*kernel.processes(), psutil.Process(kernel.pid)]
    commands = {process.pid: command_of(process) for process in processes}
    # While rows are fed, TensorFlow may yet have to be loaded, and the trainer to be forked.
    names = Counter(command.partition(" ")[0] for command in commands.values())
    assert names["tfos-forkserver"] == 1
    assert names["tfos-trainer"] == 1 or moment is _feed
    assert list(temporary.glob("tfos-trainer-*"))
    assert any("tensorboard" in command for command in commands.values())
    started = time.monotonic()
    way(kernel)
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS - (time.monotonic() - started))
    left = [commands[process.pid] for process in alive if command_of(process)]
    assert not left
    assert not list(spool.iterdir())
    while (kept := _ours(temporary)) and time.monotonic() - started < LIMIT_SECONDS:
        time.sleep(0.05)
    assert not kept


def _ours(folder: Path) -> list[str]:
    """Temporary files that are ours, or of the TensorFlow that we started; Spark's own end with its JVM or stay."""
    return [path.name for path in folder.iterdir() if path.name.startswith(("tfos", "__autograph"))]


def _run(kernel: Kernel, *cells: str) -> None:
    for source in cells:
        result = kernel.run(source)
        assert not result.error, result.traceback
