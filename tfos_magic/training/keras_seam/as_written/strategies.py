"""``tf.distribute`` in a program that each worker runs: its synchronous strategy makes the workers train together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training import ranks
from tfos_magic.training.context import CheckpointPlan
from tfos_magic.training.inputs.own_rows import mark_own
from tfos_magic.training.keras_seam.seams import replace as replace_seam
from tfos_magic.training.keras_seam.tf_distribute import strategy_class
from tfos_magic.training.run import distributed

_TOGETHER = ("MultiWorkerMirroredStrategy",)
_REFUSED = ("ParameterServerStrategy", "TPUStrategy")


@contextmanager
def strategies_taken(alone: str = "") -> Iterator[None]:
    """In the block a program's ``MultiWorkerMirroredStrategy()`` begins training together with the other workers, as
    strategy ``sync`` does; ``alone`` says why it cannot."""
    with ExitStack() as outer:
        entered: list[Any] = []

        def together(name: str) -> Any:
            if alone:
                raise TrainingError(f"tf.distribute.{name} trains with all nodes of the cluster, and {alone}")
            if not entered:
                run = replace(ranks.context(), strategy="sync", checkpoints=CheckpointPlan())
                outer.enter_context(distributed(run))
                entered.append(_Synchronous(run.collectives.size))
                _install(outer, together)  # above what the run replaces
            return entered[0]

        _install(outer, together)
        yield


def rows_are_own(stack: ExitStack) -> None:
    """From now on, until ``stack`` closes, what Python generators give is each worker's own: they are fed by Spark."""

    original = tf.data.Dataset.from_generator

    @tf.autograph.experimental.do_not_convert
    def from_generator(*args: Any, **kwargs: Any) -> Any:
        return mark_own(original(*args, **kwargs))

    replace_seam(stack, tf.data.Dataset, "from_generator", staticmethod(from_generator))


class _Synchronous:
    """What a program has as its strategy: a scope in which models are made for ``fit``, and how many workers there are.

    Loops that exchange by the strategy itself are refused: in them a program says how losses and gradients add up.
    """

    def __init__(self, size: int) -> None:
        self._scope = tf.distribute.get_strategy().scope
        self.num_replicas_in_sync = size

    def scope(self) -> Any:
        """What models are made in; it changes nothing."""
        return self._scope()

    @property
    def cluster_resolver(self) -> Any:
        """What tells the task of this node, from ``TF_CONFIG``."""
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise TrainingError(
            f"strategy.{name} is of loops of the program's own, which are not distributed here as tf.distribute does: "
            "train by model.fit(), whose batches and gradients are shared out, or put the loop into a cell of "
            "%%tfos_train, without a strategy."
        )


def _install(stack: ExitStack, together: Callable[[str], Any]) -> None:
    for module in (tf.distribute, tf.distribute.experimental):
        for names, make in ((_TOGETHER, together), (_REFUSED, _refused)):
            for name in names:
                if hasattr(module, name):
                    replace_seam(stack, module, name, strategy_class(name, make))


def _refused(name: str) -> Any:
    raise TrainingError(
        f"tf.distribute.{name} forms a cluster of its own, on the nodes of this one. Write "
        "tf.distribute.MultiWorkerMirroredStrategy() and no parameter servers (num_ps=0), or, for workers that do not "
        "wait for each other, tfos_magic's strategy async: %%tfos_train --strategy async, or TFCluster.run."
    )
