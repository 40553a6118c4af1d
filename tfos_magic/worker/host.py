"""Where an agent runs: its slot, the address it binds, its devices and threads, what it can import."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tfos_magic.lean import load_tensorflow

NEEDED = ("tensorflow", "keras", "zmq", "psutil", "cloudpickle", "pyarrow")


@dataclass(frozen=True)
class HostSlot:
    """The slot that an agent fills, its address for others, its GPU addresses, and its Spark executor's id."""

    slot: int
    host: str
    gpus: list[str]
    executor: str = ""


def find_place(context: Any, endpoint: str, slot: int) -> HostSlot:
    """Read the rest of the place off a ``TaskContext``; ``endpoint`` is the kernel's control address."""
    executor = _executor_options()
    advertised = os.environ.get("SPARK_LOCAL_IP") or executor.get("--hostname", "")
    gpu = context.resources().get("gpu")
    driver = endpoint.removeprefix("tcp://").rsplit(":", 1)[0]
    host = _reachable(advertised, driver)
    return HostSlot(slot, host, list(gpu.addresses) if gpu else [], executor.get("--executor-id", ""))


def _executor_options() -> dict[str, str]:
    """What Spark's executor, above this worker, was started with: ``--hostname`` is its address for others. Empty in
    local mode, where there is none, and where it cannot be seen."""
    try:
        import psutil
    except ImportError:  # of which is told by what looks for missing packages
        return {}
    try:
        lines = [process.cmdline() for process in psutil.Process().parents()]
    except psutil.Error:
        return {}
    executors = (line for line in lines if any(word.endswith("CoarseGrainedExecutorBackend") for word in line))
    return dict(pairwise(next(executors, [])))


def _reachable(advertised: str, driver: str) -> str:
    """What Spark binds on this host, where it can be bound, else the address that packets to the kernel leave from."""
    if driver.startswith("127.") and not advertised.startswith("127."):
        return "127.0.0.1"
    if advertised:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((advertised, 0))
            return advertised
    with socket.socket(type=socket.SOCK_DGRAM) as route:
        route.connect((driver, 9))
        return str(route.getsockname()[0])


def hold_port(host: str) -> socket.socket:
    """Bind a free port and keep it; TensorFlow binds the same one (SO_REUSEPORT), and nobody else can in between."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((host, 0))
    return held


def missing_packages() -> str:
    """What this executor lacks to run a trainer, with the remedy; empty when nothing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"{' and '.join(missing)} cannot be imported by {sys.executable} on host {socket.gethostname()}. Install what "
        "is missing there, or set PYSPARK_PYTHON to an environment that has it before the session is created "
        "(with spark-submit, set spark.pyspark.python)."
    )


def trainer_environment() -> dict[str, str]:
    """The environment variables that trainers begin with."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    # Spark's workers write every piece of a print by itself; whole lines are what people read.
    env.pop("PYTHONUNBUFFERED", None)
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    env["KERAS_BACKEND"] = "tensorflow"
    return env


def threads_of_operations(local_size: int) -> int:
    """Threads for one operation, of a trainer among ``local_size`` on its host: what TensorFlow's own variable says.

    Else it is a share of the cores, of which a container sees all that the machine has.
    """
    said = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    if said.isdecimal() and int(said):
        return int(said)
    return max(1, (os.cpu_count() or 1) // max(1, local_size))


def load() -> None:
    """Import TensorFlow and what runs cells: first use costs a second, better now than in the user's cell."""
    load_tensorflow()
    from tfos_magic.training.keras_seam import seams

    seams.check()
    import tfos_magic.training.distributed_cell
    import tfos_magic.worker.cell  # noqa: F401
