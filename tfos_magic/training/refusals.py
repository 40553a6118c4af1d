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
        f"{what} trains with --strategy sync only: {strategy!r} keeps its own order of steps, which fit() follows. "
        "Put the step into Model.train_step and call fit(), or leave --strategy out. To run the cell on every worker "
        "as it is, use %%tfos_run."
    )


def refuse_circle(loss: Any) -> None:
    """Refuse the one loss of Keras's that compares rows with each other."""
    if isinstance(loss, keras.losses.Circle):
        raise TrainingError(
            "loss Circle compares each row with all others of the batch, of which a worker sees its own. Train this "
            "model with one worker (-n 1), or write a loss over the rows alone, such as a triplet of inputs per row."
        )


def check_loss(loss: Any, values: Any, reporter: Reporter) -> None:
    """Refuse a loss that compares rows with each other; report one that is one number per batch."""
    refuse_circle(loss)
    if len(getattr(values, "shape", (None,))) != 0 or isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        return
    reporter.notice(
        f"Loss {loss.name!r} gives one number per batch. It is taken for a mean over rows; if it is anything else, "
        "let it return one value per row and Keras will average them."
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
            f"the workers do not have the same data to train on ({listed}). Arrays and datasets made in the cell must "
            "be the same on every worker, and a fed DataFrame must not be filtered or batched anew. What a loop over "
            "one collects is of this worker's rows alone: df.toPandas() gives all."
        )
    if sharded and ranks[0][0] < 0 and not ends_known:
        raise TrainingError(
            "a dataset made from a fed DataFrame has no known number of batches, so the workers may not end together. "
            "Filter in Spark before training, give steps_per_epoch (with .repeat()), or add "
            ".apply(tf.data.experimental.assert_cardinality(n))."
        )


def refuse_stateful(model: Any) -> None:
    """Refuse layers that keep a state for each row of a batch."""
    if any(getattr(layer, "stateful", False) is True for layer in model._flatten_layers()):
        raise TrainingError(
            "a stateful layer keeps a state for each row of a batch, and each worker has a part of every batch. Train "
            "this model with one worker (-n 1), or leave stateful=True out."
        )


def refuse_overwritten(variables: Sequence[Any]) -> None:
    """Refuse variables whose gradient is their next value, as the largest values of a batch are that float8 goes by."""
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
        raise TrainingError(
            "training in float8 scales its numbers by the largest of a batch, and each worker has a part of every "
            "batch. Train this model with one worker (-n 1), or in mixed_bfloat16, or say --per-worker-batches."
        )


def refuse_own_function(function: Any, name: str, kind: str) -> None:
    """Refuse a function of the cell in the place of the one that Keras makes of a step."""
    if not str(getattr(function, "__module__", "")).startswith((*_KERAS, "tfos_magic.")):
        raise TrainingError(
            f"model.{name} is a function of your own, in which workers cannot bring their gradients together. "
            f"Put the step into Model.{kind}_step, or train with one worker (-n 1)."
        )


def refuse_other_values() -> None:
    raise TrainingError(
        "the workers have data of the same size with other values, or in another order. Every worker runs the cell, so "
        "what it draws must not depend on the clock, the machine, the order of files or of threads: sort lists of "
        "files, seed with tfos.seed() instead of the time, and let Python code that draws random numbers run in turn "
        "(in one map, without num_parallel_calls). Shuffled passes that repeat() and that a fit() left in the middle "
        "go on in an order that time decides: give each fit() a dataset of its own. A dataset that is shard()ed by the "
        "worker's number would be dealt out twice: leave shard() out, or set AutoShardPolicy.OFF with tf.distribute. "
        "Generators without a seed are alike on all workers. What a loop over a fed DataFrame collects is "
        "of this worker's rows alone: give fit() the DataFrame itself, or take df.toPandas()."
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
            f"{', '.join(names)}: each worker draws its own random numbers, so the weights equal those of one process "
            "in distribution, not number by number."
        )


def note_half_precision(model: Any, reporter: Reporter) -> None:
    half = {getattr(layer, "compute_dtype", "") for layer in model._flatten_layers()} & {"float16", "bfloat16"}
    for dtype in sorted(half):
        reporter.notice(
            f"Layers compute in {dtype}, in which sums over a worker's rows round, and overflow, otherwise than those "
            "over all rows: the weights agree with those of one process to about that precision, not to 1e-5."
        )
    if isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer):
        reporter.notice(
            "LossScaleOptimizer leaves out a step whose gradients overflow, and lowers its scale. Those of a part of "
            "the rows may overflow at another step than those of all, and weights then differ by such a step."
        )


def note_per_worker_batches(reporter: Reporter) -> None:
    reporter.notice(
        "--per-worker-batches: each worker's part of a batch is a batch of its own, so the weights are not those of "
        "one process. Statistics of BatchNormalization are those of worker 0."
    )


def refuse_apart(names: Sequence[str]) -> None:
    raise TrainingError(
        f"a loop over a fed DataFrame assigned {', '.join(names)} by itself, from the rows of one worker, so that the "
        "workers have other weights now. Let an optimizer apply the gradients, which are then those of all rows, or "
        "assign what tfos.allreduce(gradient) gives."
    )


def note_own_loop(reporter: Reporter) -> None:
    reporter.notice(
        "A training loop of your own over a fed DataFrame: each worker computes the gradients of its rows, and their "
        "mean by rows is applied. That is right for a loss that is a mean over rows; one that is a sum, or compares "
        "rows, gives other weights here. fit() finds that out by itself. Loss objects and metrics "
        "of Keras give those of all rows. Gradients by inputs, and what the loop counts by itself, are of this "
        "worker's rows, and so are losses that layers add: tfos.allreduce(value) averages numbers."
    )


def note_batch_numbers(names: Sequence[str], reporter: Reporter) -> None:
    if names:
        reporter.notice(
            f"One number for each batch, made of this worker's rows, was given to {', '.join(map(repr, names))}. "
            "keras.metrics.Mean takes such numbers for means over rows, keras.metrics.Sum for sums. If they are "
            "anything else, give the metric a value for each row."
        )


def note_nested(reporter: Reporter) -> None:
    reporter.notice(
        "A loop over a fed DataFrame takes gradients by weights within another tape: there they are of this worker's "
        "rows. They are brought together when they are applied, but what is made of them before, such as a penalty of "
        "their size or an inner step, is not that of one process. fit() finds that out by itself."
    )


def note_several(reporter: Reporter) -> None:
    reporter.notice(
        "A loop over a fed DataFrame takes gradients by the same weights several times for one batch. Each is that of "
        "all workers' rows: right for several losses of the batch, not for the gradients of single rows, which are not "
        "those of one process (tape.jacobian keeps rows apart)."
    )


def note_draws(places: str, reporter: Reporter, where: str = "a step", what: str = "weights") -> None:
    if places:
        reporter.notice(
            f"Random numbers within {where} ({places}) are each worker's own, so the {what} equal those of one process "
            "in expectation, not number by number. With --seed they come out again. Numbers that are to be the same in "
            "every step, as by seed=1 in call(), are not the same on all workers: draw them in build(), once."
        )


def note_step_output(what: str, reporter: Reporter) -> None:
    reporter.notice(
        f"What a step {what} is computed of worker 0's rows, and not of the whole batch. Return it from the step, or "
        "give it to a metric, and fit() and callbacks have it of all rows."
    )


def note_batch_callbacks(callbacks: Sequence[Any], reporter: Reporter) -> None:
    """Say that logs within an epoch are a worker's own, for strategies that do not step together."""
    for callback in filter(acts_on_batches, callbacks):
        reporter.notice(
            f"Callback {type(callback).__name__} acts after batches: within an epoch logs are about this worker's "
            "rows. At the end of an epoch they are about all rows, on every worker."
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
            f"What the step returns as {', '.join(map(repr, sorted(names)))} is made of results of metrics and of the "
            "batch. Within a step these results are each worker's own, so it is averaged over the workers, and not the "
            "value of one process. Let get_metrics_result() make it, or a metric. Weights are those of one process "
            "unless a callback acts on it."
        )


def note_mixed_logs(names: Set[str], reporter: Reporter) -> None:
    if names:
        reporter.notice(
            f"What the step returns as {', '.join(map(repr, sorted(names)))} is neither a mean nor a sum over rows, so "
            "it is averaged over the workers, or rank 0's own, and not the value of one process. Weights are those of "
            "one process unless a callback acts on it."
        )


def note_eager(reporter: Reporter) -> None:
    reporter.notice(
        "The steps run eagerly (run_eagerly, run_functions_eagerly): their Python code runs on each worker's rows, and "
        "some more times before the first step, when it is tried on a few rows. What it counts and collects is then "
        "put back, but not what it takes from iterators, files and objects of other libraries. What it decides by "
        "numbers of its rows, as by if float(loss) < 2, each worker decides by its own."
    )


def note_python_state(name: str, reporter: Reporter) -> None:
    reporter.notice(
        f"The step keeps numbers of its rows in Python, as {name}: on each worker they are of its own rows. Where "
        "weights, logs or predictions go by them, they are not those of one process. Keep them in variables "
        "(add_weight()), which are tried and brought together, or train with -n 1."
    )


def refuse_threads(kind: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise TrainingError(
            f"{kind}() was called in a thread that the cell has made. Workers take each step together, and threads "
            "would come to theirs in another order on each. Call it in the cell itself, one after another, or train "
            "with one worker (-n 1)."
        )


def note_batch_metric(metric: Any, reporter: Reporter) -> None:
    function = getattr(metric, "_fn", None)
    if function is not None and not getattr(function, "__module__", "").startswith(_KERAS):
        reporter.notice(
            f"Metric {metric.name!r} gives one number per batch. It is taken for a mean over rows; if it is anything "
            "else, let it return one value per row and Keras will average them."
        )


def _known(count: int) -> str:
    return "unknown" if count < 0 else str(count)
