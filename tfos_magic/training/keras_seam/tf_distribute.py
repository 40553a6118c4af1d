"""``tf.distribute`` in a cell: its strategies would share out among devices what the workers share out already.

What a cell makes of one is TensorFlow's default strategy, of one replica, with the whole batch to it: what a process on
one device computes, and therefore what all workers together do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.keras_seam.seams import replace
from tfos_magic.training.logs.progress import Reporter

_MIRRORED = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")
REFUSED = ("ParameterServerStrategy", "TPUStrategy")


def install(stack: ExitStack, reporter: Reporter) -> None:
    """Let strategies that a cell makes be one replica, or refuse them, until ``stack`` closes."""

    def one_replica(name: str) -> Any:
        reporter.notice(
            f"tf.distribute.{name} of the cell is treated as a strategy with one replica: the workers split every "
            "batch by themselves. A shuffled dataset has the order that it has without a strategy; with one, Keras "
            "starts it once more. Delete this line and its scope to hide this message."
        )
        return tf.distribute.get_strategy()

    def refused(name: str) -> Any:
        raise TrainingError(
            f"tf.distribute.{name} forms its own cluster, but the cell already runs on one. Delete this line and its "
            "scope; --strategy async has parameter servers."
        )

    for module in (tf.distribute, tf.distribute.experimental):
        for names, make in ((_MIRRORED, one_replica), (REFUSED, refused)):
            for name in names:
                if hasattr(module, name):
                    replace(stack, module, name, strategy_class(name, make))


def strategy_class(name: str, make: Callable[[str], Any]) -> type:
    """A class, for ``isinstance``, whose instances are what ``make`` gives."""
    return type(name, (), {"__new__": lambda cls, *args, **kwargs: make(name)})
