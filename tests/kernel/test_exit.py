"""However the kernel goes, nothing stays behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.kernel.kernel_driver import SESSION, Kernel, command_of, train_cell

LIMIT_SECONDS = 10.0


def _restart(kernel: Kernel) -> None:
    kernel.manager.restart_kernel(now=False)


def _shutdown(kernel: Kernel) -> None:
    kernel.manager.shutdown_kernel(now=False)


def _terminate(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGTERM)


def _kill(kernel: Kernel) -> None:
    os.kill(kernel.pid, signal.SIGKILL)


# Restarting and shutting down are the same request to a kernel, so each is seen at one of the two moments.
@pytest.mark.parametrize(
    ("way", "moment"),
    [
        (_shutdown, "idle"),
        (_restart, "training"),
        (_terminate, "idle"),
        (_terminate, "training"),
        (_kill, "idle"),
        (_kill, "training"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_nothing_is_left_ten_seconds_after_the_kernel_goes(
    way: Callable[[Kernel], None], moment: str, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """Of a cluster that was fed, and of a TensorBoard."""
    spool = tmp_path / "spool"
    spool.mkdir()
    kernel = new_kernel()
    _run(kernel, "%load_ext tfos_magic", f"%config TFOS.spool_dir = {str(spool)!r}", SESSION)
    _run(kernel, "%tfos tensorboard runs --link")
    if moment == "idle":
        _run(kernel, train_cell("-n 1 --label y --log-dir runs"))
    else:
        kernel.finish(kernel.submit(train_cell("-n 2 --label y", epochs=100_000)), until="epoch 2 of")
    processes = [*kernel.processes(), psutil.Process(kernel.pid)]
    commands = {process.pid: command_of(process) for process in processes}
    trainers = sum("tfos_magic.node.trainer" in command for command in commands.values())
    assert trainers == {"idle": 1, "training": 2}[moment]
    assert any("tensorboard" in command for command in commands.values())
    started = time.monotonic()
    way(kernel)
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS - (time.monotonic() - started))
    left = [commands[process.pid] for process in alive if command_of(process)]
    assert not left
    assert not list(spool.iterdir())


def _run(kernel: Kernel, *cells: str) -> None:
    for source in cells:
        result = kernel.run(source)
        assert not result.error, result.traceback
