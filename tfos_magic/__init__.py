"""Train ordinary Keras cells on TensorFlow clusters that live on Spark executors.

Importing this package loads neither TensorFlow nor Spark; ``%load_ext tfos_magic`` adds the magics, :class:`TFCluster`
is the same engine without them, and ``@distributed`` makes functions run on it. In a cell, ``rank``, ``size``,
``local_rank``, ``seed``, ``allreduce``, ``broadcast``, ``allgather``, ``barrier`` and ``shard`` speak of the run,
``dataset`` gives each worker its share of files, and ``suggest_float``, ``suggest_int`` and ``suggest_categorical``
give what controls and searches may set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfos_magic import errors
from tfos_magic.errors import TFOSError, WorkerError

if TYPE_CHECKING:
    from tfos_magic.cluster.cluster import TFCluster
    from tfos_magic.cluster.distributed import distributed
    from tfos_magic.cluster.shared import current_cluster
    from tfos_magic.columns.missing import Missing
    from tfos_magic.feed.trainer.file_dataset import dataset
    from tfos_magic.spark.locations import absolute_path
    from tfos_magic.tfrecord import register_tfrecord

_SUGGESTIONS = frozenset({"suggest_float", "suggest_int", "suggest_categorical"})
_RANKS = frozenset({"rank", "size", "local_rank", "seed", "allreduce", "broadcast", "allgather", "barrier", "shard"})

__version__ = "0.1.0.dev0"
__all__ = [
    "Missing",
    "TFCluster",
    "TFOSError",
    "WorkerError",
    "absolute_path",
    "current_cluster",
    "dataset",
    "distributed",
    "errors",
    "load_ipython_extension",
    "register_tfrecord",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    """Import the engine, and the functions on ranks, only when they are asked for."""
    if name == "TFCluster":
        from tfos_magic.cluster.cluster import TFCluster

        return TFCluster
    if name == "distributed":
        from tfos_magic.cluster.distributed import distributed

        return distributed
    if name == "current_cluster":
        from tfos_magic.cluster.shared import current_cluster

        return current_cluster
    if name == "Missing":
        from tfos_magic.columns.missing import Missing

        return Missing
    if name == "register_tfrecord":
        from tfos_magic.tfrecord import register_tfrecord

        return register_tfrecord
    if name == "absolute_path":
        from tfos_magic.spark.locations import absolute_path

        return absolute_path
    if name == "dataset":
        from tfos_magic.feed.trainer.file_dataset import dataset

        return dataset
    if name in _RANKS:
        from tfos_magic.training import ranks

        return getattr(ranks, name)
    if name in _SUGGESTIONS:
        from tfos_magic.values import suggestions

        return getattr(suggestions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What can be asked for, imported or not."""
    return sorted({*globals(), *__all__, *_SUGGESTIONS, *_RANKS} - {"annotations", "Any", "TYPE_CHECKING"})


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext tfos_magic``."""
    from tfos_magic.notebook.extension import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext tfos_magic``: ends what the magics started."""
    from tfos_magic.notebook.extension import unload

    unload(ipython)
