"""Devices and threads of TensorFlow, which a worker has set up before the cell begins, and which cannot change then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tensorflow.python.eager.context import Context

from tfos_magic.training.keras_seam.seams import replace, wrap
from tfos_magic.training.logs.progress import Reporter


def install(stack: ExitStack, reporter: Reporter) -> None:
    """Leave them as they are where the cell sets them, and say so, until ``stack`` closes."""

    def unless_begun(original: Callable[..., None], *args: Any) -> None:
        try:
            original(*args)
        except RuntimeError:
            reporter.notice(
                "Settings of TensorFlow's devices and threads (set_visible_devices, set_memory_growth, "
                "set_intra_op_parallelism_threads and the like) in the cell are ignored: a worker has those of its "
                "Spark task, and TensorFlow has started with them. Except for rounding, results do not depend on them."
            )

    for name in ("set_visible_devices", "set_memory_growth", "set_logical_device_configuration"):
        wrap(stack, Context, name, unless_begun)
    for name in ("intra_op_parallelism_threads", "inter_op_parallelism_threads"):
        known: property = vars(Context)[name]
        replace(stack, Context, name, known.setter(lambda *args, _set=known.fset: unless_begun(_set, *args)))
