"""What a cell asks of a whole dataset, of which each rank has a share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training.inputs.marks import is_fed
from tfos_magic.training.inputs.own_reads import Looks, refuse_recut
from tfos_magic.training.keras_seam.seams import wrap


def install(stack: ExitStack, looks: Looks) -> None:
    """Refuse what would take this worker's rows for all, until ``stack`` closes."""

    def reduce(original: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if is_fed(dataset) and not looks.reducing:
            raise TrainingError(
                "reduce() on a fed DataFrame would see only this worker's rows. Compute it in Spark (df.agg, "
                'df.count), or in a loop over the batches whose result tfos.allreduce(value, op="sum") adds up over '
                "the workers."
            )
        return original(dataset, *args, **kwargs)

    def cardinality(original: Any, dataset: Any) -> Any:
        refuse_recut(dataset)
        return original(dataset)

    stack.callback(looks.close)
    wrap(stack, tf.data.Dataset, "reduce", reduce)
    wrap(stack, tf.data.Dataset, "cardinality", cardinality)
