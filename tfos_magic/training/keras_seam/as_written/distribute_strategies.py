"""``tf.distribute`` in a program that each worker runs: its synchronous strategy makes the workers train together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact

from tfos_magic.errors import TrainingError
from tfos_magic.training import ranks
from tfos_magic.training.context import CheckpointPlan
from tfos_magic.training.distributed_cell import distributed
from tfos_magic.training.inputs.marks import is_sharded, mark_sharded
from tfos_magic.training.inputs.own_rows import (
    is_own,
    mark_cut,
    mark_own,
    mark_together,
    of_unknown_length,
)
from tfos_magic.training.inputs.sharding import own_batches, shard_batches
from tfos_magic.training.keras_seam.as_written.replica_context import ReplicaStrategy
from tfos_magic.training.keras_seam.as_written.replica_context import install as install_replicas
from tfos_magic.training.keras_seam.seams import replace as replace_seam
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.keras_seam.tf_distribute import REFUSED, strategy_class
from tfos_magic.training.rank_session import Session
from tfos_magic.values import random_state

_TOGETHER = ("MultiWorkerMirroredStrategy",)


@contextmanager
def strategies_taken(alone: str = "") -> Iterator[None]:
    """In the block a program's ``MultiWorkerMirroredStrategy()`` begins training together with the other workers, as
    strategy ``sync`` does; ``alone`` says why it cannot."""
    with ExitStack() as outer:
        entered: list[Any] = []
        install_replicas(outer)
        _heed_options(outer)

        def together(name: str) -> Any:
            if alone:
                raise TrainingError(f"tf.distribute.{name} trains with all nodes of the cluster, but {alone}")
            if not entered:
                run = ranks.context()
                states = {**random_state.of_seed(run.seed), **random_state.alike(run.collectives.gather)}
                run = replace(run, strategy="sync", checkpoints=CheckpointPlan(), random=states)
                entered.append(_Synchronous(outer.enter_context(distributed(run))))
                _install(outer, together)  # above what the run replaces
            return entered[0]

        _install(outer, together)
        yield


def rows_are_own(stack: ExitStack) -> None:
    """From now on, until ``stack`` closes, what Python generators give is each worker's own: they are fed by Spark."""

    original = tf.data.Dataset.from_generator

    @tf.autograph.experimental.do_not_convert
    def from_generator(*args: Any, **kwargs: Any) -> Any:
        return mark_own(original(*args, **kwargs), fed=True)

    replace_seam(stack, tf.data.Dataset, "from_generator", staticmethod(from_generator))


def _heed_options(stack: ExitStack) -> None:
    """Take a dataset that ``tf.distribute`` is told not to shard for rows of each worker's own."""

    @tf.autograph.experimental.do_not_convert
    def with_options(original: Any, dataset: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        given = original(dataset, options, *args, **kwargs)
        is_off = given.options().experimental_distribute.auto_shard_policy is tf.data.experimental.AutoShardPolicy.OFF
        return mark_own(of_unknown_length(given)) if is_off else given

    wrap(stack, tf.data.Dataset, "with_options", with_options)


class StrategyAttributeError(TrainingError, AttributeError):
    """What a strategy does not have here, for ``hasattr()`` as well."""


class _Synchronous:
    """What a program has as its strategy: one replica on each worker.

    Models are made in its scope for ``fit``, which shares out batches and gradients by itself. In :meth:`run` it is
    the program that says how losses and gradients add up, as ``tf.distribute`` documents it.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._replicas = session, ReplicaStrategy(session.collectives, lambda: session.applying)
        self._scope = tf.distribute.get_strategy().scope
        self.num_replicas_in_sync = session.collectives.size

    def scope(self) -> Any:
        """What models are made in; it changes nothing."""
        return self._scope()

    @property
    def cluster_resolver(self) -> Any:
        """What tells the task of this node, from ``TF_CONFIG``."""
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()

    @autograph_artifact  # it is called as it is, and AutoGraph converts what it calls
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Call ``fn`` as this worker's replica. Optimizers add gradients up over replicas, metrics what they count.

        Other variables that it assigns are brought together as their aggregation says; floats without one, such as the
        moments of a normalization, are means over replicas after it.
        """
        if not self._session.many:
            return self._replicas.run(fn, args, kwargs)
        with self._session.own_loop.by_replica():
            return self._replicas.run(fn, args, kwargs)

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """The sum or mean over replicas of what each has, within each along ``axis`` first."""
        return self._replicas.reduce(reduce_op, value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """What all replicas have, joined along ``axis``."""
        return self._replicas.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any]:
        """What the replicas of this worker have: it has one."""
        return (value,)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """This worker's part of each batch of ``dataset``, whose batches are global.

        Of rows that Spark feeds it takes as many from its own, and batches end on all workers with the first that has
        no more.
        """
        rank, size = self._session.collectives.rank, self._session.collectives.size
        if size == 1 or is_sharded(dataset):
            return mark_together(own_batches(dataset, rank, size)) if is_own(dataset) else dataset
        return mark_together(mark_sharded(shard_batches(dataset, rank, size), ends_alike=True, asked=True))

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """What ``dataset_fn`` gives for this worker, whose batches are its own. They end on all with the first."""
        rank, size = self._session.collectives.rank, self._session.collectives.size
        return mark_together(mark_cut(of_unknown_length(dataset_fn(tf.distribute.InputContext(size, rank, size)))))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise StrategyAttributeError(
            f"strategy.{name} is not supported here. Use scope, run, reduce, gather, num_replicas_in_sync, "
            "cluster_resolver, experimental_local_results, experimental_distribute_dataset or "
            "distribute_datasets_from_function."
        )


def _install(stack: ExitStack, together: Callable[[str], Any]) -> None:
    for module in (tf.distribute, tf.distribute.experimental):
        for names, make in ((_TOGETHER, together), (REFUSED, _refused)):
            for name in names:
                if hasattr(module, name):
                    replace_seam(stack, module, name, strategy_class(name, make))


def _refused(name: str) -> Any:
    raise TrainingError(
        f"tf.distribute.{name} forms its own cluster on the nodes of this one. Use "
        "tf.distribute.MultiWorkerMirroredStrategy() without parameter servers (num_ps=0), or, for workers that do "
        "not wait for each other, tfos_magic's strategy async: %%tfos_train --strategy async, or TFCluster.run."
    )
