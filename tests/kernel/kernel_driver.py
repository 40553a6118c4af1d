"""A real IPython kernel, driven as a notebook drives it: cells in, outputs out, real signals."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client import BlockingKernelClient, KernelManager

CELL_TIMEOUT = 120.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

SESSION = """
from pyspark.sql import SparkSession, functions as F
spark = (SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
         .config("spark.ui.showConsoleProgress", "false").getOrCreate())
train = spark.range(0, 600, 1, 3).select(
    F.array(*[F.rand(i).cast("float") for i in range(4)]).alias("x"), (F.col("id") % 2).alias("y"))
"""

END_OTHERS = """
from pyspark.sql import SparkSession
there = SparkSession.getActiveSession()
if there is not None and there.sparkContext.master != "local[4]":
    there.stop()
"""

DAWDLE = """
import pathlib, time
from pyspark.sql.functions import udf
mark = str(pathlib.Path("computing").absolute())
dawdle = udf(lambda i: pathlib.Path(mark).touch() or time.sleep(0.05) or 1.0, "double")
slow = spark.range(0, 4000, 1, 4).select(dawdle("id").alias("x"), F.col("id").alias("y"))
"""

CELL = """%%tfos_train {options}
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(train, epochs={epochs})
"""


def train_cell(options: str = "--label y", epochs: int = 2) -> str:
    """A small training cell; with very many epochs it goes on until someone stops it."""
    return CELL.format(options=options, epochs=epochs)


@dataclass
class CellResult:
    """What a cell left: its text, its error (empty when it went well) and the seconds it took."""

    text: str = ""
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    displays: list[dict[str, Any]] = field(default_factory=list)


class Kernel:
    """One kernel and its client."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "k"))
        env = {**os.environ, "TFOS_VIEW": "text", **environment}
        self.manager.start_kernel(cwd=str(folder), env=env)
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.process.pid)

    def run(self, source: str, timeout: float = CELL_TIMEOUT) -> CellResult:
        """Run a cell to its end."""
        return self.finish(self.submit(source), timeout)

    def submit(self, source: str) -> str:
        """Send a cell and give its message id."""
        return str(self.client.execute(source))

    def finish(self, message_id: str, timeout: float = CELL_TIMEOUT, until: str | None = None) -> CellResult:
        """Collect a cell's output to its end, or until ``until`` has been printed."""
        result, started = CellResult(), time.monotonic()
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.1, timeout - (time.monotonic() - started)))
            except Empty:
                raise AssertionError(f"the cell did not end within {timeout:.0f} s; it said:\n{result.text}") from None
            if message["parent_header"].get("msg_id") != message_id:
                continue
            if _note(result, message) or (until is not None and until in result.text):
                result.seconds = time.monotonic() - started
                return result

    def processes(self) -> list[psutil.Process]:
        """Everything that runs below the kernel: JVM, Spark's Python workers, trainers, TensorBoard."""
        return psutil.Process(self.pid).children(recursive=True)

    def end(self) -> None:
        """End the kernel whatever state it is in."""
        self.client.stop_channels()
        with contextlib.suppress(Exception):
            self.manager.shutdown_kernel(now=True)


def _note(result: CellResult, message: dict[str, Any]) -> bool:
    """Take one message of a cell; True when it was its last."""
    content, kind = message["content"], message["msg_type"]
    if kind == "stream":
        result.text += content["text"]
    elif kind in ("display_data", "update_display_data", "execute_result"):
        result.displays.append(content["data"])
        result.text += content["data"].get("text/plain", "") + "\n"
    elif kind == "error":
        result.error = content["ename"]
        result.traceback = _COLOUR.sub("", "\n".join(content["traceback"]))
    return bool(kind == "status" and content["execution_state"] == "idle")


def command_of(process: psutil.Process) -> str:
    """The process's name and command line; empty for one that has ended and is not yet reaped."""
    try:
        return " ".join([process.name(), *command])[:150] if (command := process.cmdline()) else ""
    except psutil.NoSuchProcess:
        return ""
