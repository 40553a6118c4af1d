"""What cannot be made equal to one plain process is refused here, before it trains, with what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfos_magic.errors import TrainingError
from tfos_magic.training.progress import Reporter

_OWN_LOOP = (
    "{what} cannot be distributed: only fit() and evaluate() know which rows are whose. {instead} "
    "To run the cell on every worker as it is, use %%tfos_run."
)


def refuse_own_loop(what: str, instead: str) -> None:
    raise TrainingError(_OWN_LOOP.format(what=what, instead=instead))


def check_reduction(values: Any, sample_weight: Any, mask: Any, reduction: str | None) -> None:
    """Refuse a loss that is not a mean over rows; the mean of the ranks' losses would not be the global loss."""
    if reduction in (None, "none", "sum"):
        raise TrainingError(
            f"a loss with reduction={reduction!r} depends on how many rows a worker sees. Write "
            "reduction='sum_over_batch_size' (Keras's default) and, to keep the step as long as before, multiply the "
            "learning rate by the batch size."
        )
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        raise TrainingError(
            "a loss with reduction='mean_with_sample_weight' divides by the weights that a worker sees. Write "
            "reduction='sum_over_batch_size' and scale the sample weights to a mean of 1."
        )
    if mask is not None:
        raise TrainingError(
            "a loss over masked values divides by the number of unmasked values that a worker sees. Give the mask as "
            "sample_weight instead, or end the model with a layer that consumes it, such as an LSTM or pooling layer."
        )


def check_loss_shape(loss: Any, values: Any, reporter: Reporter) -> None:
    """Refuse or report a loss that is one number per batch, so that its mean over rows is not in sight."""
    if len(getattr(values, "shape", (None,))) != 0:
        return
    if isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        name = type(loss).__name__
        raise TrainingError(
            f"loss {name} with axis=None is one number for the whole batch, not a mean over rows. "
            f"Write {name}(axis=(1, 2, 3)), the axes of one row."
        )
    reporter.notice(
        f"Loss {loss.name!r} gives one number per batch. It is taken for a mean over rows; if it is anything else, "
        "let it return one value per row and Keras will average them."
    )


def check_same_input(ranks: np.ndarray, sharded: bool, steps_given: bool) -> None:
    """Refuse inputs that differ between ranks.

    ``ranks`` is an int64 array of shape (ranks, 3): batches (-1 when unknown), rows (-1 when unknown) and whether it
    is fed.
    """
    if (ranks != ranks[0]).any():
        listed = "; ".join(
            f"rank {rank}: {_known(batches)} batches, {_known(rows)} rows{', fed' if fed else ''}"
            for rank, (batches, rows, fed) in enumerate(ranks.tolist())
        )
        raise TrainingError(
            f"the workers do not have the same data to train on ({listed}). Arrays and datasets made in the cell must "
            "be the same on every worker, and a fed DataFrame must not be filtered or batched anew."
        )
    if sharded and ranks[0][0] < 0 and not steps_given:
        raise TrainingError(
            "a dataset made from a fed DataFrame has no known number of batches, so the workers may not end together. "
            "Filter in Spark before training, give steps_per_epoch (with .repeat()), or add "
            ".apply(tf.data.experimental.assert_cardinality(n))."
        )


def refuse_adapt_on_share(layer: Any, sharded: bool) -> None:
    if sharded:
        raise TrainingError(
            f"{type(layer).__name__}.adapt() would see only this worker's rows of the fed DataFrame. Compute the "
            "statistics in Spark, or adapt the layer in the notebook and use it in the cell."
        )


def turn_off_jit(model: Any, reporter: Reporter) -> bool:
    """Train without XLA, inside which TensorFlow cannot talk to other ranks; tell whether it was on."""
    if not model.jit_compile:
        return False
    reporter.notice("jit_compile is off in this run: a compiled step cannot exchange gradients. Results are the same.")
    model.jit_compile = False
    return True


def note_random_layers(layers: Sequence[Any], reporter: Reporter) -> None:
    names = sorted({type(layer).__name__ for layer in layers})
    if names:
        reporter.notice(
            f"{', '.join(names)}: each worker draws its own random numbers, so the weights equal those of one process "
            "in distribution, not number by number."
        )


def note_batch_metric(metric: Any, reporter: Reporter) -> None:
    function = getattr(metric, "_fn", None)
    if function is not None and not getattr(function, "__module__", "").startswith("keras."):
        reporter.notice(
            f"Metric {metric.name!r} gives one number per batch. It is taken for a mean over rows; if it is anything "
            "else, let it return one value per row and Keras will average them."
        )


def _known(count: int) -> str:
    return "unknown" if count < 0 else str(count)
