"""Metrics of the global data: the state of every metric is summed over ranks before Keras reads its result.

Keras's metrics keep sums and counts, so the sum of their states over ranks is the state that one process would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileMetrics

from tfos_magic.training.collectives import Collectives
from tfos_magic.training.firststep.laws import Law
from tfos_magic.training.logs.progress import Reporter, flat

NUMBERS = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


Begun = Mapping[int, tf.Tensor]
"""What variables of metrics held before the first step of an epoch, by their ids: nothing, but for metrics that
``reset_state()`` leaves as they are."""


def begun(model: Any) -> Begun:
    """What the model's metrics hold now, where that is not zero; it is the same on all ranks."""
    values = {id(variable): variable.read_value() for variable in state(model)}
    return {key: value for key, value in values.items() if np.any(value)}


def summed(model: Any, collectives: Collectives, before: Begun, *more: tf.Tensor) -> list[tf.Tensor]:
    """The state of the model's metrics over all ranks, which have each added to what there was ``before``; and the sum
    of ``more``."""
    variables, again = state(model), collectives.size - 1
    sums = collectives.all_reduce([*(v.read_value() for v in variables), *more])
    for place, variable in enumerate(variables):
        if (value := before.get(id(variable))) is not None:
            sums[place] -= tf.cast(again, value.dtype) * value
    return sums


def sum_over_ranks(model: Any, collectives: Collectives, stop: bool, before: Begun) -> bool:
    """Replace the state of the model's metrics by its sum over ranks; tell whether any rank wants to stop."""
    *sums, votes = summed(model, collectives, before, tf.constant([float(stop)]))
    for variable, value in zip(state(model), sums, strict=True):
        variable.assign(value)
    return bool(votes[0] > 0)


def state(model: Any) -> list[Any]:
    """The variables, sums and counts, that the model's metrics are made of, as TensorFlow's own."""
    return [variable for metric in leaf_metrics(model) for variable in state_of(metric)]


def state_of(metric: Any) -> list[Any]:
    """The variables, sums and counts, that one metric is made of, as TensorFlow's own."""
    return [raw(v) for v in metric.variables if v.dtype in NUMBERS]


def raw(variable: Any) -> tf.Variable:
    """TensorFlow's variable in the place of Keras's; those of ``tf_keras`` are TensorFlow's own."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def results_in(model: Any, logs: Any) -> set[str]:
    """The names of those ``logs`` of a step that are what metrics of ``model`` with these names have on this rank."""
    if not isinstance(logs, Mapping):
        return set()
    results = flat(model.get_metrics_result())
    return {name for name, value in flat(logs).items() if name in results and _is_same(value, results[name])}


def under_other_names(model: Any, logs: Any) -> dict[str, str]:
    """Which of the ``logs`` of an eager step are the very result of one metric of another name, and of which one."""
    if not isinstance(logs, Mapping):
        return {}
    results = {name: value for name, value in flat(model.get_metrics_result()).items() if np.ndim(value) == 0}
    same = {
        name: [other for other, result in results.items() if np.array_equal(value, result)]
        for name, value in flat(logs).items()
    }
    return {name: others[0] for name, others in same.items() if len(others) == 1 and name not in others}


def _is_same(value: Any, result: Any) -> bool:
    return np.shape(value) == np.shape(result) and np.allclose(value, result, 1e-6, 0.0)


def average_logs(
    model: Any,
    logs: Mapping[str, Any],
    result_names: set[str],
    laws: Mapping[str, Law],
    collectives: Collectives,
    rows: float,
) -> dict[str, Any]:
    """Make what a custom step returned global, after the state of metrics has been summed.

    Scalars that are sums over rows, as ``laws`` say, are added up over ranks, others averaged, weighted by the rows of
    their last step, and what has a value for each row there gets those of all ranks, in the batch's order. But where
    every rank with rows has them in ``result_names``, results of metrics, they are read from these.
    """
    values = {name: tf.convert_to_tensor(value) for name, value in logs.items()}
    own = [rows > 0 and name not in result_names for name in logs]
    unlike_rows = [laws[name] is not Law.UNKNOWN or not _is_by_row(value, rows) for name, value in values.items()]
    apart = np.asarray(collectives.gather([*own, *unlike_rows]).any(axis=0)).tolist()
    differ, by_row = apart[: len(logs)], [n for n, other in zip(logs, apart[len(logs) :], strict=True) if not other]
    results = flat(model.get_metrics_result())
    read = {name: results[name] for name, other in zip(logs, differ, strict=True) if not other and name in results}
    joined = dict(zip(by_row, collectives.concat([values[name][: int(rows)] for name in by_row]), strict=True))
    sums = {name for name, law in laws.items() if law is Law.SUM}
    scalars = [n for n, v in values.items() if v.shape.rank == 0 and (v.dtype.is_floating or n in sums)]
    weights = [float(rows > 0) if name in sums else rows for name in scalars]
    weighted = [
        tf.math.multiply_no_nan(tf.cast(values[name], tf.float64), tf.constant(weight, tf.float64))
        for name, weight in zip(scalars, weights, strict=True)
    ]
    *totals, total = collectives.all_reduce([*weighted, tf.constant(rows, tf.float64)])
    made = {name: v if name in sums else v / total for name, v in zip(scalars, totals, strict=True)}
    return {**logs, **{name: tf.cast(value, values[name].dtype) for name, value in made.items()}, **joined, **read}


def _is_by_row(value: tf.Tensor, rows: float) -> bool:
    """Whether it may have a value for each of the ``rows`` of a step; one of a rank without any shows nothing."""
    kind = value.dtype.is_floating or value.dtype in (tf.int32, tf.int64)
    return bool(kind and value.shape.rank and (not rows or value.shape[0] == rows))


def of_all_ranks(
    model: Any,
    logs: Mapping[str, Any],
    collectives: Collectives,
    rows: float,
    again: Callable[[Set[str]], tuple[Mapping[str, Any], Set[str]]],
    laws: Mapping[str, Law],
    begun_with: Begun,
) -> dict[str, Any]:
    """Logs after a batch for the rows of all ranks; the model's metrics go on with those of this rank.

    ``again`` computes those that are made of metrics, of what these are then; ``laws`` are those of logs.
    """
    result_names, variables = results_in(model, logs), state(model)
    before = [variable.read_value() for variable in variables]
    sum_over_ranks(model, collectives, False, begun_with)
    try:
        return average_logs(
            model, {**logs, **again(logs.keys() - result_names)[0]}, result_names, laws, collectives, rows
        )
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def leaf_metrics(model: Any) -> Iterator[Any]:
    """The model's metrics, those given to ``compile`` one by one, each once."""
    seen: set[int] = set()
    for metric in model.metrics:
        for leaf in metric.metrics if isinstance(metric, CompileMetrics) else [metric]:
            if id(leaf) not in seen:
                seen.add(id(leaf))
                yield leaf


def report_unknown(model: Any, reporter: Reporter) -> None:
    """Say which metrics are not Keras's own, for whether their state is a sum is not known."""
    for metric in leaf_metrics(model):
        note_unknown(metric, reporter)


def report_python_state(model: Any, reporter: Reporter) -> None:
    """Say which metrics of the user's keep what they have seen elsewhere than in variables that can be summed."""
    for metric in leaf_metrics(model):
        note_other_types(metric, reporter)
        if not metric.variables and not type(metric).__module__.startswith(("keras.", "tf_keras.")):
            reporter.notice(
                f"Metric {metric.name!r} ({type(metric).__name__}) has no variables: what it keeps in Python covers "
                "each worker's rows, and its value is that of the first worker, not of one process. Keep sums and "
                "counts in add_variable(), which are summed over the workers, or compute it from predictions."
            )


def note_other_types(metric: Any, reporter: Reporter) -> None:
    """Say of a metric which of its variables are of types that are not summed."""
    if other := [f"{v.name} ({v.dtype})" for v in metric.variables if v.dtype not in NUMBERS]:
        reporter.notice(
            f"Metric {metric.name!r} keeps {', '.join(other)}, which is not summed over the workers: its value covers "
            "the rows of one of them. Keep sums and counts as float32, float64, int32 or int64."
        )


def note_unknown(metric: Any, reporter: Reporter) -> None:
    """Say of a metric that is not Keras's own what is done with its state."""
    note_other_types(metric, reporter)
    if not type(metric).__module__.startswith(("keras.", "tf_keras.")):
        reporter.notice(
            f"The state of metric {metric.name!r} ({type(metric).__name__}) is summed over the workers. That is right "
            "if its variables are sums or counts; otherwise its value is not that of a single process."
        )
