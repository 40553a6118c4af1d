"""How the numbers of a step are called in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfos_magic.tracebacks import essence
from tfos_magic.training.checkpointing.snapshot import variables
from tfos_magic.training.loop import Loop

KINDS = {
    "loss": "Loss {!r}",
    "added": "The loss that layer {!r} adds",
    "statistic": "What the model collects in {!r}",
    "gradient": "The gradient of {!r}",
    "applied": "What the step does to the gradient of {!r}",
}
"""Kinds of numbers that weights are made of, what comes first in a step first."""


_ASSIGNED = "What the step itself assigns to weight {!r}"

_OF_ASSIGNED = (
    "Gradients cover all rows where the optimizer applies them; a step that moves weights by its own rule, like SAM, "
    "gives each worker's weights only those of its own rows."
)
_OF_MASKED = (
    "If it is a mean over what is not masked, let Keras compute it: use ignore_class=, mask_zero=True or "
    "sample_weight. A loss function for compile() may compare rows: it is computed over those of all workers."
)

_OF_PYTHON = (
    "The step runs eagerly: if it depends on an iterator, a file or an object of another library, it behaves "
    "differently each time it is tried. Keep such values in an attribute of the model, or in a variable."
)


class Words:
    """Words for numbers of the steps of ``model``; ``owners`` are losses and layers by their ids."""

    def __init__(self, model: Any, owners: Mapping[int, Any]) -> None:
        paths = {key: v.path for v in variables(model) for key in (id(v), id(v.value))}
        self._weights = {key for v in model.trainable_variables for key in (id(v), id(getattr(v, "value", v)))}
        self._of_python = f" {_OF_PYTHON}" if model.run_eagerly else ""
        self._names = {**paths, **{key: str(getattr(o, "name", type(o).__name__)) for key, o in owners.items()}}

    def of(self, name: Any) -> str:
        """What a number of a step is called, empty for one that no weights are made of."""
        text = _ASSIGNED if self._assigns(name) else KINDS.get(name[0], "")
        return text.format(self._names.get(name[1], "a variable"))

    def _assigns(self, name: Any) -> bool:
        return name[0] == "statistic" and name[1] in self._weights

    def refusal(self, name: Any, again: Loop | None = None) -> str:
        """Why a step is refused in which that number mixes rows, and what to do; ``again`` is where that showed."""
        rest = "it is neither a mean nor a sum over rows, and each worker has only part of them"
        why = f"{self.of(name)} mixes the rows of a batch: {rest}"
        if again is not None:
            why = (
                f"{self.of(name)} is no longer what it was in the first step. In step {again.step + 1} of epoch "
                f"{again.epoch + 1}, {rest}, or it changed from one to the other"
            )
        return (
            f"{why}, so the weights would differ from those of one process. Train with one worker (-n 1), or use "
            "--per-worker-batches: each worker's part is then its own batch, as in Horovod and DDP. "
            f"{_OF_ASSIGNED if self._assigns(name) else _OF_MASKED}{self._of_python}"
        )

    def of_zero(self, name: Any) -> str:
        """What is told of a number that was zero in a trial."""
        return (
            f"{self.of(name)} was zero before the first step, so whether it is a sum or a mean over rows is unknown. "
            "It is assumed to be a mean."
        )


def of_untried(model: Any, why: str) -> str:
    """What is told of a step that could not be tried."""
    return (
        f"The step of model {model.name!r} was not checked before the first step, because it could not be tried on a "
        f"few rows ({why}). Its loss is assumed to be a mean over rows. If it is not, weights differ from those of a "
        "single process. Use -n 1 to train in one worker."
    )


@contextmanager
def explaining(workers: int) -> Iterator[None]:
    """Let an error that tells of other numbers of rows than one of ``workers`` has say why that may be."""
    try:
        yield
    except Exception as error:
        error.tfos_hint = of_counts(essence(str(error)), workers)  # type: ignore[attr-defined]
        raise


def of_counts(error: str, workers: int) -> str:
    """What is told beside an error of shapes, one of which has as many rows as another on all ``workers``."""
    if "NoneType" in error or "None values" in error:
        return (
            "If the step takes the number of rows from x.shape[0]: a worker's part of a batch may have any number of "
            "rows, so this is None. Use tf.shape(x)[0], or make batch_size a multiple of the workers, with "
            "drop_remainder=True."
        )
    if "unknown TensorShape" in error or "unknown rank" in error:
        return (
            "A worker's part of a batch may have any number of rows, even one, so squeeze() without an axis leaves an "
            "unknown shape there. Name the axis, as in keras.ops.squeeze(labels, -1), or train with -n 1."
        )
    said = error.partition("Arguments received by")[0]  # of a layer, whatever its error is about
    shapes = re.findall(r"[\[(]\d+(?:, ?\d+)*,?[\])]", said) if "shape" in said.lower() else ()
    numbers = {int(number) for shape in shapes for number in re.findall(r"\d+", shape)}
    if not any({n // workers, -(-n // workers)} & (numbers - {0, 1, n}) for n in numbers):
        return ""
    return (
        f"If the step expects all rows of a batch: each of {workers} workers has only part of them. Take the number "
        "from the batch itself, as with tf.shape(x)[0], or train with one worker (-n 1)."
    )


def of_metric(metric: Any) -> str:
    """What is told of a metric whose state is not added up."""
    return (
        f"Metric {metric.name!r} is not made of sums over rows, so its value over several workers is not that of a "
        "single process. Weights still match unless a callback acts on it."
    )


def of_gradients_by_metrics(model: Any) -> str:
    """What is said where a step goes by its metrics."""
    return (
        f"The step of model {model.name!r} depends on its metrics, as by self.metric.result(): until the end of an "
        "epoch each worker has its own value. Keep the number in a variable of the model that changes by means over "
        "rows, like self.mean.assign(0.9 * self.mean + 0.1 * loss), or train with one worker (-n 1)."
    )


def of_assumed(name: str) -> str:
    """What is told of a loss that is computed of a worker's own rows, for its outputs are too large to be exchanged, or
    it reads more than these."""
    return (
        f"Loss {name!r} returns one number per batch, not one per row, and cannot be computed of the rows of all "
        "workers: its outputs are too large to exchange, or it reads more than its arguments. In the first batch it "
        "was a mean or a sum over rows; this is assumed for all batches. If it "
        "divides by something that only some batches have, such as the number of unmasked rows, return a loss for "
        "each row, with sample_weight."
    )


def of_traces(names: Iterable[str]) -> str:
    """What is told of Python code that changes something by these ``names`` while a graph is made."""
    return (
        f"The step is a graph: its Python code runs when the graph is made, and changes {', '.join(sorted(names))}. "
        "That may happen more or less often than in one process, as when the last batch is smaller. If weights depend "
        "on it, keep it in a variable (add_weight())."
    )


def of_tables() -> str:
    """What is told of a step that writes into a lookup table."""
    return (
        "The step writes into a lookup table. Each worker has its own, filled from its own rows. If weights or "
        "results depend on it, keep it in a variable (add_weight()), which is combined, or train with -n 1."
    )
