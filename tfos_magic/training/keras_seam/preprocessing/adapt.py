"""``adapt()`` of Keras's preprocessing layers with several ranks: the state that one process gets from all rows.

Of a fed DataFrame each rank has its share of every batch. Counts of tokens and documents are summed over ranks before a
vocabulary is made of them; moments are merged batch by batch, by the formula of ``Normalization.adapt``;
``Discretization`` gets the values of whole batches. Of other data every rank has all, and ends with the same state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf
from keras.src.layers.preprocessing.discretization import merge_summaries
from keras.src.layers.preprocessing.feature_space import FeatureSpace
from keras.src.layers.preprocessing.index_lookup import IndexLookup
from keras.src.layers.preprocessing.normalization import _extract_batch

from tfos_magic.training import ranks
from tfos_magic.training import refusals as common
from tfos_magic.training.inputs.marks import gives_whole_batches, is_sharded, keeps_rows
from tfos_magic.training.keras_seam.preprocessing import refusals, states
from tfos_magic.training.keras_seam.seams import wrap
from tfos_magic.training.rank_session import Session
from tfos_magic.training.step import rows_in

_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)
_KERAS_BATCH = 128  # rows that Normalization.adapt() makes a batch of


class Data(Enum):
    """What ``adapt()`` is given: all rows on every rank, shares of the same batches, or shares in batches of a rank's
    own making."""

    COPIES = "copies"
    SHARES = "shares"
    ROWS = "rows"


def install(stack: ExitStack, session: Session) -> None:
    """Take hold of the layers' ``adapt`` until ``stack`` closes."""
    adapting = _Adapting(session)
    for kind in (keras.layers.Normalization, keras.layers.Discretization, *_LOOKUPS):
        wrap(stack, kind, "adapt", adapting.adapt)
    wrap(stack, FeatureSpace, "adapt", adapting.adapt_space)
    for kind in (keras.layers.Discretization, IndexLookup):
        wrap(stack, kind, "update_state", adapting.update)
        wrap(stack, kind, "finalize_state", adapting.finalize)


class _Adapting:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._data: Data | None = None
        self._by_hand: WeakSet[Any] = WeakSet()

    def adapt(self, original: Any, layer: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        """Stand in for ``layer.adapt``. Raises :class:`RunStopped` where a rank was asked to stop meanwhile."""
        self._adapt(original, layer, data, *args, **kwargs)
        session = self._session
        if ranks.peers() is not None and session.collectives.gather([session.context.stop.requested]).any():
            session.raise_stopped("adapt()")

    def _adapt(self, original: Any, layer: Any, data: Any, *args: Any, **kwargs: Any) -> None:
        together = ranks.peers() is not None
        if not (isinstance(data, tf.data.Dataset) and is_sharded(data)):
            with self._given(Data.COPIES):
                original(layer, data, *args, **kwargs)
            if together:
                states.check_alike(layer, self._session.collectives)
            return
        common.refuse_adapt_on_share(layer, not together)
        whole = gives_whole_batches(data)
        steps = inspect.signature(original).bind(layer, data, *args, **kwargs).arguments.get("steps")
        refusals.refuse_on_parts(layer, not whole and (steps is not None or not keeps_rows(data)))
        with self._session.entered("adapt", layer), self._given(Data.SHARES if whole else Data.ROWS):
            if isinstance(layer, keras.layers.Normalization):
                self._normalize(original, layer, data)
            else:
                original(layer, data, *args, **kwargs)

    def adapt_space(self, original: Any, space: Any, dataset: Any) -> None:
        """Stand in for ``FeatureSpace.adapt``, which looks at a batch and adapts a layer for each feature."""
        if isinstance(dataset, tf.data.Dataset) and is_sharded(dataset):
            with self._session.entered("adapt", space):
                original(space, dataset)
        else:
            original(space, dataset)

    def update(self, original: Any, layer: Any, batch: Any) -> None:
        """Stand in for ``layer.update_state``."""
        if self._data is None:
            self._by_hand.add(layer)
        elif self._data is not Data.COPIES and isinstance(layer, IndexLookup):
            refusals.refuse_one_document(layer, batch.shape.rank == 1 and layer.output_mode == "tf_idf")
            if batch.shape.rank and not int(rows_in(batch)):
                return
        elif self._data is Data.SHARES:
            values = np.array(batch).astype("float32").reshape(-1)
            batch = self._session.collectives.concat([tf.constant(values)])[0]
        original(layer, batch)

    def finalize(self, original: Any, layer: Any) -> None:
        """Stand in for ``layer.finalize_state``."""
        peers = self._session.collectives
        if self._data in (Data.SHARES, Data.ROWS):
            if isinstance(layer, IndexLookup):
                states.merge_counts(layer, peers)
            elif self._data is Data.ROWS:
                self._merge_summaries(layer)
        original(layer)
        if self._data is None and layer in self._by_hand and ranks.peers() is not None:
            self._by_hand.discard(layer)
            states.check_alike(layer, peers)

    def _merge_summaries(self, layer: Any) -> None:
        local_summary, width = layer.summary, layer.summary.shape[1]
        peers = self._session.collectives
        ends = np.cumsum(peers.gather([width])[:, 0])
        columns = np.asarray(peers.concat([tf.constant(local_summary.T)])[0])
        layer.reset_state()
        for summary in np.split(columns.T, ends[:-1], axis=1):
            layer.summary = merge_summaries(summary, layer.summary, layer.epsilon)
        self._session.reporter.notice(
            "Discretization.adapt() on a rebatched fed DataFrame: its bin boundaries match those of a single process "
            f"to within epsilon={layer.epsilon:g} of the rows, not number by number."
        )

    def _normalize(self, original: Any, layer: Any, data: tf.data.Dataset) -> None:
        spec = _extract_batch(data.element_spec)
        refusals.refuse_axis_of_rows(layer, spec.shape.rank == 1 and self._data is Data.SHARES and layer.axis != ())
        nothing = data.take(0).apply(tf.data.experimental.assert_cardinality(0))  # Keras 3.16 wants to know how much
        original(layer, nothing)  # Keras's own checks; it makes the variables
        refusals.refuse_axis_of_rows(layer, 0 in layer._keep_axis)
        batches = data.batch(_KERAS_BATCH) if spec.shape.rank == 1 and layer.axis != () else data
        moments = (states.moments(layer, _extract_batch(batch)) for batch in batches)
        parts = moments if self._data is Data.SHARES else [states.all_of(layer, moments)]
        states.assign_moments(layer, self._over_ranks(parts))

    def _over_ranks(self, moments: Iterable[states.Array]) -> Iterator[states.Array]:
        for local_moments in moments:
            yield states.pooled(
                np.asarray(self._session.collectives.concat([tf.constant(local_moments[np.newaxis])])[0])
            )

    @contextmanager
    def _given(self, data: Data) -> Iterator[None]:
        self._data = data
        try:
            yield
        finally:
            self._data = None
