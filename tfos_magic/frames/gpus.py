"""GPUs that Spark gives to tasks: asked for where a DataFrame is mapped, and taken by the task's Python worker."""

from __future__ import annotations

import os
import warnings
from typing import Any
from weakref import WeakKeyDictionary

from tfos_magic.errors import UsageError
from tfos_magic.spark.shipping import is_connect, runs_in_this_process_tree

SETTING = "spark.tfos.frames.gpus"
"""How many GPUs a task gets, which may be a part of one, such as 0.5; 0 for none. By default 1 where there are any."""

_EXECUTOR, _TASK = "spark.executor.resource.gpu.amount", "spark.task.resource.gpu.amount"
_REUSE = "spark.python.worker.reuse"

# Spark refuses a stage of two profiles, even if they ask for the same: each session has one of a kind.
_profiles: WeakKeyDictionary[Any, dict[float, Any]] = WeakKeyDictionary()


def profile_of(spark: Any) -> Any:
    """The resource profile of tasks that run tensor functions; None where Spark has no GPUs or gives them by itself.

    It has none in local mode. Warns where a task may come to have the GPU of another one. Raises :class:`UsageError`
    for a ``SETTING`` that is no number.
    """
    held = float(spark.conf.get(_EXECUTOR, "0") or 0)
    if not held or runs_in_this_process_tree(spark):
        return None
    given = spark.conf.get(_TASK, "")
    amount = float(given) if given else _asked(spark)
    if amount and held > max(amount, 1.0) and str(spark.conf.get(_REUSE, "true")).lower() != "false":
        warnings.warn(
            f"Executors have {held:g} GPUs and tasks take {amount:g}: a Python worker keeps the GPU of its first task, "
            f"which Spark may have given to another one by then. {_REUSE}=false, or executors with one GPU each, give "
            "each task its own.",
            stacklevel=2,
        )
    return None if given or not amount else _profile(spark, amount)


def _asked(spark: Any) -> float:
    text = spark.conf.get(SETTING, "1")
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if amount < 0:
        raise UsageError(f"{SETTING} is {text!r}: give the GPUs of a task, such as 1 or 0.5, or 0 for none.")
    return amount


def _profile(spark: Any, amount: float) -> Any:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    known = _profiles.setdefault(spark if is_connect(spark) else spark.sparkContext, {})
    if amount not in known:
        known[amount] = ResourceProfileBuilder().require(TaskResourceRequests().resource("gpu", amount)).build
    return known[amount]


def take_gpus(resources: Any) -> None:
    """Let this process, in which TensorFlow has not looked for GPUs yet, see those of its task's ``resources`` alone.

    Tasks may share a GPU, so TensorFlow takes memory as it needs it, and not all at once.
    """
    if "gpu" in resources:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(resources["gpu"].addresses)
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
