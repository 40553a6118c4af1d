"""Skipping data ahead, so that a resumed ``fit`` sees the rows in the order that it would have seen them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from tfos_magic.training.checkpointing.first_values import feeds_begun, kinds
from tfos_magic.training.inputs.digests import without_digest
from tfos_magic.training.inputs.marks import is_by_world


class ResumableIterator(TFEpochIterator):
    """Keras's iterator over epochs, which can be wound forward by epochs and steps before it is used."""

    _skip = 0

    def skip_to(self, epochs: int, steps: int) -> None:
        """Leave ``epochs`` whole epochs behind, and ``steps`` steps of the next one.

        Where an epoch depends only on how often the data was begun, it is begun and not read. Elsewhere it is read.
        """
        for _ in range(epochs):
            if self.depends_on_begins_alone and not self.spans_epochs:
                self._begin_epoch()
            else:
                self._read_epoch()
        self._skip = steps

    @property
    def element_spec(self) -> Any:
        return without_digest(self._distributed_dataset.element_spec)[0]

    @property
    def batches(self) -> list[int | None]:
        """How many batches an epoch has, and of how many rows; None what is not known."""
        return [self._num_batches, self.data_adapter.batch_size]

    @property
    def is_own(self) -> bool:
        """Whether nobody else reads this data: arrays, of which each ``fit`` makes its own."""
        return isinstance(self.data_adapter, ArrayDataAdapter)

    @property
    def spans_epochs(self) -> bool:
        """Whether one iterator goes on from epoch to epoch."""
        return self.steps_per_epoch is not None

    @property
    def runs_python(self) -> bool:
        """Whether reading the data may run Python code, which may draw random numbers of its own."""
        if self.is_own:
            return False
        return not isinstance(self.data_adapter, TFDatasetAdapter) or feeds_begun(self._distributed_dataset) is None

    @property
    def follows_ranks(self) -> bool:
        """Whether another number of ranks would have other rows in a step."""
        return not self.is_own and is_by_world(self._distributed_dataset)

    @property
    def depends_on_begins_alone(self) -> bool:
        """Whether the order of rows follows from the number of iterators made: no outer state, no cache to fill.

        How many Keras makes in an epoch of unknown length differs; that matters only to what ``tf.data`` shuffles.
        """
        kinds_of_data = kinds(self._distributed_dataset)
        counted = self._num_batches is not None or "_ShuffleDataset" not in kinds_of_data
        return not self.runs_python and counted and "CacheDataset" not in kinds_of_data

    def _begin_epoch(self) -> None:
        """Make as many iterators as Keras makes in an epoch: one to read, and one for the next epoch at its end."""
        self.data_adapter.on_epoch_begin()
        for _ in range(2):
            self._current_iterator = iter(self._get_iterator())
            self._steps_seen = self._num_batches
        self._steps_seen = 0
        # Feeds count the iterators that are read, which are fewer.
        for skip in [] if self.is_own else feeds_begun(self._distributed_dataset) or []:
            skip(1)
        self.data_adapter.on_epoch_end()

    def _read_epoch(self) -> None:
        with self.catch_stop_iteration():
            for _, _, iterator in self:
                for _ in range(self.steps_per_execution):
                    next(iterator)

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:
        skip, self._skip = self._skip, 0
        for begin, end, iterator in super()._enumerate_iterator():
            if end < skip:
                for _ in range(self.steps_per_execution):
                    next(iterator, None)
                continue
            yield begin, end, iterator
