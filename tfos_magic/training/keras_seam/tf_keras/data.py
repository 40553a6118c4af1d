"""This rank's rows of what ``fit`` and ``evaluate`` of ``tf_keras`` read, by the rule that Keras 3's follow too."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf
from tf_keras.src.engine.data_adapter import TensorLikeDataAdapter

from tfos_magic.training import refusals as common
from tfos_magic.training.firststep.maps import paddings, refuse_padding
from tfos_magic.training.inputs.joined_elements import of_equal_rows
from tfos_magic.training.inputs.marks import ends_alike, is_sharded
from tfos_magic.training.inputs.sharding import shard_batches
from tfos_magic.training.keras_seam.tf_keras import refusals, steps
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session


def share_out(session: Session, handler: Any) -> None:
    """Cut the batches of a ``DataHandler`` to this rank's rows, and build from their shapes what is to read them."""
    adapter, loop = handler._adapter, session.loops[-1]
    sharded = is_share(handler._dataset)
    batches = -1 if handler._inferred_steps is None else handler._inferred_steps
    input_summary = [batches, _rows(adapter), int(sharded), 0]
    known = handler._steps_per_epoch is not None or (sharded and ends_alike(handler._dataset))
    common.check_same_input(session.collectives.gather(input_summary), sharded, known)
    if sharded and session.exact and paddings(handler._dataset):
        refuse_padding(loop.model, {}, session.reporter)
    if sharded:
        handler._dataset = of_equal_rows(handler._dataset)
    elif not shares_numbers(adapter):
        handler._dataset = share(session, handler._dataset)
    if not loop.compared:  # the first data of a fit() is what it trains on, the second validates
        loop.compared = True
        loop.build = partial(_build, session, loop, handler._dataset.element_spec, anew=steps.has_no_function(loop))


def _build(session: Session, loop: Loop, element_spec: Any, anew: bool) -> None:
    if anew:
        steps.build(session, loop, element_spec)
    refusals.check_model(loop)


def share(session: Session, dataset: Any) -> Any:
    """Give ``dataset``, of batches of rows or of their numbers, with this rank's part of each batch."""
    return shard_batches(dataset, session.collectives.rank, session.collectives.size)


def shares_numbers(adapter: Any) -> bool:
    """Whether the numbers of rows are shared out, before rows are read, instead of the rows themselves."""
    return type(adapter) is TensorLikeDataAdapter and adapter._shuffle != "batch"


def is_share(dataset: Any) -> bool:
    """Whether ``dataset`` is one, and has this rank's rows alone."""
    return isinstance(dataset, tf.data.Dataset) and is_sharded(dataset)


def _rows(adapter: Any) -> int:
    """How many rows there are in an epoch; -1 where that is not known."""
    if not isinstance(adapter, TensorLikeDataAdapter):
        return -1
    size, partial = adapter.get_size(), adapter.partial_batch_size()
    return int(size * adapter.batch_size() if partial is None else (size - 1) * adapter.batch_size() + partial)
