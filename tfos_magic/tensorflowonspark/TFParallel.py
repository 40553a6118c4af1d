"""Programs that run on several executors at once and know nothing of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfos_magic.tensorflowonspark import TFCluster


def run(sc: Any, map_fn: Callable[[Any, Any], Any], tf_args: Any, num_executors: int, use_barrier: bool = True) -> None:
    """Run ``map_fn(tf_args, ctx)`` ``num_executors`` times, with its number in ``ctx.worker_num``, and wait for all.

    Raises what one of them raised. ``use_barrier`` is taken for compatibility: all of them run at the same time.
    """
    TFCluster.run(sc, map_fn, tf_args, num_executors).shutdown()
