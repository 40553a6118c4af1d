"""What cannot be made equal to one plain process is refused here, before it trains, with what to write instead."""

from __future__ import annotations

import dis
import threading
from collections.abc import Sequence, Set
from typing import Any

import keras
import numpy as np

from tfos_magic.errors import TrainingError
from tfos_magic.training.logs.progress import Reporter
from tfos_magic.training.stop_votes import names_stop_training

_KERAS = ("keras.", "tf_keras.")  # modules of Keras 3 and of Keras 2
# Keras's callbacks that read logs once an epoch unless these attributes of theirs say more often.
_EPOCH, _EVERY = "epoch", {"ModelCheckpoint": "save_freq", "TensorBoard": "update_freq"}


def refuse_own_loop(what: str, strategy: str) -> None:
    """Say that a strategy which is not exact trains in ``fit`` alone."""
    raise TrainingError(
        f"{what} works only with --strategy sync: {strategy!r} has its own order of steps, which fit() follows. Put "
        "the step into Model.train_step and call fit(), or omit --strategy. To run the cell unchanged on every "
        "worker, use %%tfos_run."
    )


def refuse_circle(loss: Any) -> None:
    """Refuse the one loss of Keras's that compares rows with each other."""
    if isinstance(loss, keras.losses.Circle):
        raise TrainingError(
            "loss Circle compares each row with all others in the batch, but a worker sees only its own. Train this "
            "model with one worker (-n 1), or write a loss on single rows, such as a triplet of inputs per row."
        )


def check_loss(loss: Any, values: Any, reporter: Reporter) -> None:
    """Refuse a loss that compares rows with each other; report one that is one number per batch."""
    refuse_circle(loss)
    if len(getattr(values, "shape", (None,))) != 0 or isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        return
    reporter.notice(
        f"Loss {loss.name!r} returns one number per batch, which is assumed to be a mean over rows. If it is anything "
        "else, return one value per row: Keras averages them."
    )


def check_same_input(ranks: np.ndarray, sharded: bool, ends_known: bool) -> None:
    """Refuse inputs that differ between ranks.

    ``ranks`` is an int64 array of shape (ranks, 4): batches (-1 when unknown), rows (-1 when unknown), whether it is
    fed, and a digest of its values (0 when not known before they are read). ``ends_known`` tells that all ranks take as
    many steps even where nobody knows how many.
    """
    if (ranks[:, 3] != ranks[0, 3]).any() and (ranks[:, :3] == ranks[0, :3]).all():
        refuse_other_values()
    if (ranks != ranks[0]).any():
        listed = "; ".join(
            f"rank {rank}: {_known(batches)} batches, {_known(rows)} rows{', fed' if fed else ''}"
            for rank, (batches, rows, fed, _) in enumerate(ranks.tolist())
        )
        raise TrainingError(
            f"the workers do not have the same training data ({listed}). Arrays and datasets created in the cell must "
            "be the same on every worker, and a fed DataFrame must not be filtered or rebatched. A loop over one "
            "collects only this worker's rows: df.toPandas() returns all rows."
        )
    if sharded and ranks[0][0] < 0 and not ends_known:
        raise TrainingError(
            "a dataset made from a fed DataFrame has an unknown number of batches, so the workers may not end "
            "together. Filter in Spark before training, set steps_per_epoch (with .repeat()), or add "
            ".apply(tf.data.experimental.assert_cardinality(n))."
        )


def refuse_stateful(model: Any) -> None:
    """Refuse layers that keep a state for each row of a batch."""
    if any(getattr(layer, "stateful", False) is True for layer in model._flatten_layers()):
        raise TrainingError(
            "a stateful layer keeps a state for each row of a batch, but each worker has only part of every batch. "
            "Train this model with one worker (-n 1), or remove stateful=True."
        )


def refuse_overwritten(variables: Sequence[Any]) -> None:
    """Refuse variables whose gradient is their next value, as the largest values of a batch are that float8 goes by."""
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
        raise TrainingError(
            "float8 training scales its numbers by the largest in a batch, but each worker has only part of every "
            "batch. Train this model with one worker (-n 1) or in mixed_bfloat16, or use --per-worker-batches."
        )


def refuse_own_function(function: Any, name: str, kind: str) -> None:
    """Refuse a function of the cell in the place of the one that Keras makes of a step."""
    if not str(getattr(function, "__module__", "")).startswith((*_KERAS, "tfos_magic.")):
        raise TrainingError(
            f"model.{name} is your own function, in which workers cannot combine their gradients. Put the step into "
            f"Model.{kind}_step, or train with one worker (-n 1)."
        )


def refuse_other_values() -> None:
    raise TrainingError(
        "the workers have data of the same size, but with different values or in a different order. Every worker runs "
        "the cell, so its data must not depend on the clock, the machine, or the order of files or threads: sort "
        "lists of files, seed with tfos.seed() instead of the time, and run Python code that draws random numbers in "
        "turn (in one map, without num_parallel_calls). A shuffled dataset with repeat() that a fit() left in the "
        "middle of a pass continues in an order that depends on timing: give each fit() its own dataset. A dataset "
        "that you shard() by the worker's number would be split twice: remove shard(), or set AutoShardPolicy.OFF "
        "with tf.distribute. Generators without a seed are the same on all workers. A loop over a fed DataFrame "
        "collects only this worker's rows: give fit() the DataFrame itself, or use df.toPandas()."
    )


def refuse_adapt_on_share(layer: Any, sharded: bool) -> None:
    if sharded:
        raise TrainingError(
            f"{type(layer).__name__}.adapt() would see only this worker's rows of the fed DataFrame. Compute the "
            "statistics in Spark, or adapt the layer in the notebook and use it in the cell."
        )


def note_random_layers(layers: Sequence[Any], reporter: Reporter) -> None:
    names = sorted({type(layer).__name__ for layer in layers})
    if names:
        reporter.notice(
            f"{', '.join(names)}: each worker draws its own random numbers, so weights match those of a single "
            "process in distribution, not value by value."
        )


def note_half_precision(model: Any, reporter: Reporter) -> None:
    half = {getattr(layer, "compute_dtype", "") for layer in model._flatten_layers()} & {"float16", "bfloat16"}
    for dtype in sorted(half):
        reporter.notice(
            f"Layers compute in {dtype}, in which sums over a worker's rows round and overflow differently from sums "
            "over all rows. Weights match those of a single process to about that precision, not to 1e-5."
        )
    if isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer):
        reporter.notice(
            "LossScaleOptimizer skips a step whose gradients overflow, and lowers its scale. Gradients of part of the "
            "rows may overflow at a different step than those of all rows; weights then differ by that step."
        )


def note_per_worker_batches(reporter: Reporter) -> None:
    reporter.notice(
        "--per-worker-batches: each worker's part of a batch is its own batch, so weights differ from those of a "
        "single process. Statistics of BatchNormalization are those of worker 0."
    )


def refuse_apart(names: Sequence[str], of_layers: bool) -> None:
    raise TrainingError(
        f"a loop over a fed DataFrame assigned {', '.join(names)} directly, from one worker's rows, so the workers "
        "now have different weights. Let an optimizer apply the gradients, which then cover all rows, or assign the "
        f"result of tfos.allreduce(gradient).{' fit() combines what layers collect.' if of_layers else ''}"
    )


def note_own_loop(reporter: Reporter) -> None:
    reporter.notice(
        "A custom training loop over a fed DataFrame, or over what tfos.shard() gives: each worker computes the "
        "gradients of its rows, and their mean, weighted by rows, is applied. That is right for a loss that is a mean "
        "over rows; one that is a sum, or compares rows, gives different weights here. fit() detects this by itself. "
        "Keras loss objects and metrics cover all rows. Gradients of inputs, values that the loop computes, and losses "
        "that layers add cover only this worker's rows: tfos.allreduce(value) averages numbers."
    )


def note_batch_numbers(names: Sequence[str], reporter: Reporter) -> None:
    if names:
        reporter.notice(
            f"One number per batch, computed from this worker's rows, was passed to {', '.join(map(repr, names))}. "
            "keras.metrics.Mean treats such numbers as means over rows, keras.metrics.Sum as sums. If they are "
            "anything else, give the metric one value per row."
        )


def note_nested(reporter: Reporter) -> None:
    reporter.notice(
        "A loop over a fed DataFrame takes gradients of weights inside another tape, where they cover only this "
        "worker's rows. They are combined when applied, but what is computed from them before, such as a penalty on "
        "their size or an inner step, is not that of a single process. fit() detects this by itself."
    )


def note_several(reporter: Reporter) -> None:
    reporter.notice(
        "A loop over a fed DataFrame takes gradients of the same weights several times per batch. Each covers all "
        "workers' rows: right for several losses of the batch, wrong for gradients of single rows, and for batches "
        "that are kept, as in list(dataset). Draw each batch for its step (tape.jacobian keeps rows apart)."
    )


def note_draws(places: str, reporter: Reporter, where: str = "a step", what: str = "weights") -> None:
    if places:
        reporter.notice(
            f"Random numbers in {where} ({places}) differ between workers, so the {what} match those of a single "
            "process in expectation, not value by value. --seed makes them reproducible. Numbers meant to be the same "
            "in every step, as with seed=1 in call(), still differ between workers: draw them once, in build()."
        )


def note_step_output(what: str, reporter: Reporter) -> None:
    reporter.notice(
        f"What a step {what} is computed from worker 0's rows, not from the whole batch. Return it from the step, or "
        "give it to a metric: fit() and callbacks then get it for all rows."
    )


def note_batch_callbacks(callbacks: Sequence[Any], reporter: Reporter) -> None:
    """Say that logs within an epoch are a worker's own, for strategies that do not step together."""
    for callback in filter(acts_on_batches, callbacks):
        reporter.notice(
            f"Callback {type(callback).__name__} acts after batches: within an epoch, logs cover only this worker's "
            "rows. At the end of an epoch they cover all rows, on every worker."
        )


def acts_on_batches(callback: Any) -> bool:
    """Whether a callback reads logs after batches, or ends the training after one."""
    kinds = {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith(_KERAS)}
    if "TerminateOnNaN" in kinds or any(
        getattr(callback, _EVERY[name], _EPOCH) != _EPOCH for name in kinds & {*_EVERY}
    ):
        return True
    if type(callback).__module__.startswith(_KERAS) and "LambdaCallback" not in kinds:
        return False
    for name in ("on_train_batch_end", "on_batch_end", "on_test_batch_end"):
        function = vars(callback).get(name) or getattr(type(callback), name)
        code = getattr(function, "__code__", None)
        if code is None or function.__module__.startswith(_KERAS):
            continue
        logs = code.co_varnames[code.co_argcount - 1]
        used = {(i.opname[:4], i.argval) for i in dis.get_instructions(code)}
        if ("LOAD", logs) in used or names_stop_training(function, callback):
            return True
    return False


def note_derived(names: Set[str], reporter: Reporter) -> None:
    if names:
        reporter.notice(
            f"What the step returns as {', '.join(map(repr, sorted(names)))} combines metric results with the batch. "
            "Within a step each worker has its own metric results, so it is averaged over the workers and differs "
            "from that of a single process. Compute it in get_metrics_result() or in a metric. Weights still match "
            "unless a callback acts on it."
        )


def note_mixed_logs(names: Set[str], reporter: Reporter) -> None:
    if names:
        reporter.notice(
            f"What the step returns as {', '.join(map(repr, sorted(names)))} is neither a mean nor a sum over rows, "
            "so it is averaged over the workers, or taken from rank 0, and is not the single-process value. Weights "
            "still match unless a callback acts on it."
        )


def note_eager(reporter: Reporter) -> None:
    reporter.notice(
        "The steps run eagerly (run_eagerly, run_functions_eagerly): their Python code runs on each worker's rows, "
        "and a few more times before the first step, when it is tried on a few rows. What it counts and collects is "
        "then restored, but not what it takes from iterators, files and objects of other libraries. Decisions based "
        "on its rows, such as if float(loss) < 2, are made by each worker on its own."
    )


def note_python_state(name: str, reporter: Reporter) -> None:
    reporter.notice(
        f"The step keeps values of its rows in Python, as {name}: each worker has those of its own rows. Weights, "
        "logs or predictions that depend on them differ from those of a single process. Keep them in variables "
        "(add_weight()), which are checked and combined, or train with -n 1."
    )


def refuse_threads(kind: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise TrainingError(
            f"{kind}() was called in a thread that the cell started. Workers take each step together, and threads "
            "would reach their steps in a different order on each. Call it in the cell itself, one after another, or "
            "train with one worker (-n 1)."
        )


def note_batch_metric(metric: Any, reporter: Reporter) -> None:
    function = getattr(metric, "_fn", None)
    if function is not None and not getattr(function, "__module__", "").startswith(_KERAS):
        reporter.notice(
            f"Metric {metric.name!r} returns one number per batch, which is assumed to be a mean over rows. If it is "
            "anything else, return one value per row: Keras averages them."
        )


def _known(count: int) -> str:
    return "unknown" if count < 0 else str(count)
