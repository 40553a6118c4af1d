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


@pytest.mark.parametrize("moment", ["idle", "training"])
@pytest.mark.parametrize(
    "way", [_restart, _shutdown, _terminate, _kill], ids=["restart", "shutdown", "sigterm", "kill"]
)
def test_nothing_is_left_ten_seconds_after_the_kernel_goes(
    way: Callable[[Kernel], None], moment: str, new_kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    kernel = new_kernel()
    _bring_up(kernel, spool)
    if moment == "training":
        kernel.finish(kernel.submit(train_cell(epochs=100_000)), until="epoch 2 of")
    processes = [*kernel.processes(), psutil.Process(kernel.pid)]
    commands = {process.pid: command_of(process) for process in processes}
    assert sum("tfos_magic.node.trainer" in command for command in commands.values()) == 2
    assert any("tensorboard" in command for command in commands.values())
    started = time.monotonic()
    way(kernel)
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS - (time.monotonic() - started))
    left = [commands[process.pid] for process in alive if command_of(process)]
    assert not left
    assert not list(spool.iterdir())


def _bring_up(kernel: Kernel, spool: Path) -> None:
    """A cluster that has trained from a feed, and a TensorBoard."""
    for source in (
        "%load_ext tfos_magic",
        f"%config TFOS.spool_dir = {str(spool)!r}",
        SESSION,
        train_cell("--label y --log-dir runs"),
        "%tfos tensorboard --link",
    ):
        result = kernel.run(source)
        assert not result.error, result.traceback
