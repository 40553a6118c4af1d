"""Where an agent runs: its slot, the address it binds, its devices and threads, what it can import."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from dataclasses import dataclass
from typing import Any

NEEDED = ("tensorflow", "keras", "zmq", "psutil", "cloudpickle", "pyarrow")


@dataclass(frozen=True)
class HostSlot:
    """The slot that an agent fills, its address for others, and its GPU addresses."""

    slot: int
    host: str
    gpus: list[str]


def find_place(context: Any, endpoint: str, slot: int) -> HostSlot:
    """Read the rest of the place off a ``BarrierTaskContext``; ``endpoint`` is the kernel's control address."""
    task_info = context.getTaskInfos()[context.partitionId()]
    advertised = os.environ.get("SPARK_LOCAL_IP") or task_info.address.rsplit(":", 1)[0]
    gpu = context.resources().get("gpu")
    driver = endpoint.removeprefix("tcp://").rsplit(":", 1)[0]
    return HostSlot(slot, _reachable(advertised, driver), list(gpu.addresses) if gpu else [])


def _reachable(advertised: str, driver: str) -> str:
    """What Spark binds on this host, where it can be bound, else the address that packets to the kernel leave from."""
    if driver.startswith("127.") and not advertised.startswith("127."):
        return "127.0.0.1"
    with socket.socket() as probe:
        try:
            probe.bind((advertised, 0))
            return advertised
        except OSError:
            pass
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
        f"{' and '.join(missing)} cannot be imported by {sys.executable} on host {socket.gethostname()}. Install "
        "what is missing there (pip install 'tfos_magic[cpu]' brings all), or point spark.pyspark.python, or "
        "PYSPARK_PYTHON before the session is made, at an environment that has it."
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
