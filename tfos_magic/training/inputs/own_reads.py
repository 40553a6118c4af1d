"""What a cell does by itself with a fed DataFrame, of which each rank holds a share: told, or refused where it would
take this worker's rows for all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tfos_magic.errors import TrainingError
from tfos_magic.training.context import Calls
from tfos_magic.training.inputs.marks import inputs_of, is_fed, is_marked
from tfos_magic.training.keras_seam.seams import replaced
from tfos_magic.training.logs.progress import Reporter

# Transformations that cut rows into other elements than the global batches, by the names of TensorFlow's classes.
_RECUT = {
    "_UnbatchDataset": "unbatch()",
    "_RebatchDataset": "rebatch()",
    "_BatchDataset": "batch()",
    "_ParallelBatchDataset": "batch()",
    "_PaddedBatchDataset": "padded_batch()",
    "_WindowDataset": "window()",
    "_GroupByWindowDataset": "group_by_window()",
}
# Those that keep or drop an element by what is in it, so that ranks would part.
_CHOOSING = {"_FilterDataset": "filter()", "_TakeWhileDataset": "take_while()", "_UniqueDataset": "unique()"}


def refuse_recut(dataset: Any) -> None:
    """Raise :class:`TrainingError` where batches of a fed DataFrame are cut anew."""
    if name := _first_of(dataset, _RECUT):
        raise TrainingError(
            f"{name} on a fed DataFrame would regroup only this worker's rows of each batch. Set the rows per batch "
            "with --batch-size (batch_size=); to look at single rows, use Spark: df.limit(5).toPandas()."
        )


def refuse_cut(dataset: Any) -> None:
    """As :func:`refuse_recut`, and where a loop of the cell's own would leave out elements by their rows."""
    refuse_recut(dataset)
    if name := _first_of(dataset, _CHOOSING):
        raise TrainingError(
            f"{name} on a fed DataFrame would see only this worker's rows of each batch, so the workers would not "
            "read the same batches. Filter in Spark first: df.filter(...)."
        )


def refuse_unlike(dataset: Any) -> None:
    """Raise :class:`TrainingError` where a ``fit`` would choose elements by what this worker's rows are."""
    if name := _first_of(dataset, _CHOOSING):
        raise TrainingError(
            f"{name} on a fed DataFrame would see only this worker's rows of each batch, so the workers would not "
            "train on the batches of one process. Filter in Spark first: df.filter(...)."
        )


def refuse_in_thread() -> None:
    """Raise a :class:`TrainingError`: another thread than the cell's, mostly a pipeline's, reads a fed DataFrame."""
    raise TrainingError(
        "Python code in a thread beside the cell (a generator, a PyDataset, a py_function) reads a fed DataFrame. It "
        "would see only this worker's rows, and its output would be treated as the rows of all. Transform the fed "
        "DataFrame with its own map(), or use df.toPandas() for a table that each worker needs."
    )


def _first_of(dataset: Any, names: dict[str, str]) -> str:
    """The first of the transformations ``names`` on the way to a fed dataset; empty where there is none."""
    if is_marked(dataset):
        return ""
    own_name = names.get(type(dataset).__name__, "") if is_fed(dataset) else ""
    return own_name or next(
        (input_name for source in inputs_of(dataset) if (input_name := _first_of(source, names))), ""
    )


class Looks:
    """Loops over fed DataFrames in which the cell trains nothing: their rows are this worker's, which is said once.

    ``looked`` tells whether there was one on this rank, of which numbers may be that train a model afterwards.
    """

    def __init__(self, calls: Calls, reporter: Reporter, rows_trained: Callable[[], int]) -> None:
        self._calls, self._reporter, self._rows_trained = calls, reporter, rows_trained
        self._before: tuple[int, int] | None = None
        self.looked = False
        self.reducing = False

    def begin(self, dataset: Any) -> None:
        """A loop over ``dataset`` begins; raises :class:`TrainingError` where it is not over whole global batches."""
        refuse_cut(dataset)
        self.settle()
        self._before = self._now()

    def forget(self) -> None:
        """The loop under way gets what is about the rows of all ranks."""
        self._before = None

    def inside(self) -> AbstractContextManager[None]:
        """Let TensorFlow reduce datasets for loops in graphs."""
        return replaced(self, "reducing", True)

    def close(self) -> None:
        """Say, where there were such loops, what they saw."""
        self.settle()
        if self.looked:
            self._reporter.notice(
                "The cell itself loops over a fed DataFrame, or over files: each worker sees only its own rows of "
                "every batch, so what is counted, averaged or collected in that loop covers only these. "
                'tfos.allreduce(value, op="sum") adds up over the workers; Keras metrics, fit, evaluate and predict do '
                "so by themselves."
            )

    def settle(self) -> None:
        """The loop under way is over: it was a look if nothing was trained or exchanged since it began."""
        self.looked = self.looked or self._before == self._now()
        self._before = None

    def _now(self) -> tuple[int, int]:
        return self._rows_trained(), self._calls.exchanged
