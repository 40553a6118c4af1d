"""A cell that something happens to in the middle of an epoch, once, and those who watch it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfos_magic import TFCluster
from tfos_magic.cluster.runs.request import Observer

EPOCHS, STEPS = 4, 6

CELL = """
import os, pathlib, signal, time
import keras
import numpy as np

RANK = tfos.rank()
keras.utils.set_random_seed(3)
random = np.random.default_rng(5)
x = random.normal(size=(96, 8)).astype("float32")
y = (x[:, 0] > 0).astype("float32")

class Fault(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        print("epoch", epoch)

    def on_train_batch_end(self, batch, logs=None):
        if (RANK, self.epoch, batch) == (rank, 2, 3):
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            happen()

def happen():
    {fault}

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("adam", "mse")
print("rank", RANK, "begins")
history = model.fit({data}, epochs=4, verbose=0, callbacks=[Fault()])
weights = model.get_weights()
"""

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
KILL_SERVER = "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


class Watch(Observer):
    """An observer that keeps what a run showed and printed, and sets ``reached`` when ``until`` holds of its state."""

    def __init__(self, until: Callable[[Any], bool] = lambda state: False) -> None:
        self.reached = threading.Event()
        self.state: Any = None
        self.printed = ""
        self._until = until

    def update(self, state: Any) -> None:
        self.state = state
        if self._until(state):
            self.reached.set()

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        self.printed += text


def run(
    cluster: TFCluster, fault: str, mark: Path, *, rank: int = 1, watch: Watch | None = None, **options: Any
) -> dict[str, Any]:
    """Train with ``fault`` happening to ``rank`` in the third epoch, unless the file ``mark`` says that it has."""
    data = "train" if "frames" in options else "x, y, batch_size=16"
    return cluster.run(
        CELL.format(fault=fault, data=data),
        names={"rank": rank, "mark": str(mark)},
        outputs=["history", "weights"],
        observer=watch,
        **options,
    )


def furthest(results: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference between two runs' weights."""
    pairs = zip(results["weights"], expected["weights"], strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)
