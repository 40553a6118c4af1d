"""How the numbers of a step are called in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tfos_magic.training.checkpointing.snapshot import variables
from tfos_magic.training.loop import Loop

KINDS = {
    "loss": "Loss {!r}",
    "added": "The loss that layer {!r} adds",
    "statistic": "What the model gathers in {!r}",
    "gradient": "The gradient of {!r}",
    "applied": "What the step does to the gradient of {!r}",
}
"""Kinds of numbers that weights are made of, what comes first in a step first."""


_ASSIGNED = "What the step itself assigns to the weight {!r}"

_OF_ASSIGNED = (
    "Gradients are those of all rows where the optimizer applies them; a step that moves weights by its own rule, as "
    "SAM and its like do, gives each worker's weights those of its own rows."
)
_OF_MASKED = (
    "If it is a mean over what is not masked, let Keras take that mean: by ignore_class=, mask_zero=True or "
    "sample_weight."
)

_OF_PYTHON = (
    "The step runs eagerly: where it goes by what an iterator, a file or an object of another library gives, it does "
    "other things each time it is tried. Keep that in an attribute of the model, or in a variable."
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
        rest = "it is neither a mean nor a sum over rows, and each worker has a part of them"
        why = f"{self.of(name)} mixes the rows of a batch: {rest}"
        if again is not None:
            why = (
                f"{self.of(name)} is no longer what it was in the first step. In step {again.step + 1} of epoch "
                f"{again.epoch + 1}, {rest}, or it has become the one from the other"
            )
        return (
            f"{why}, so the weights would not be those of one process. Train with one worker (-n 1), or say "
            "--per-worker-batches: each worker's part is then a batch of its own, as Horovod and DDP have it. "
            f"{_OF_ASSIGNED if self._assigns(name) else _OF_MASKED}{self._of_python}"
        )

    def of_zero(self, name: Any) -> str:
        """What is told of a number that was zero in a trial."""
        return (
            f"{self.of(name)} was zero before the first step, so that it does not show whether it is a sum or a mean "
            "over rows. It is taken for a mean."
        )


def of_untried(model: Any, why: str) -> str:
    """What is told of a step that could not be tried."""
    return (
        f"Whether the step of model {model.name!r} can be shared out was not checked before the first step, which "
        f"could not be tried on a few rows ({why}). Its loss is taken for a mean over rows: if it is none, the weights "
        "are not those of one process. -n 1 trains it in one worker."
    )


def of_counts(error: str, workers: int) -> str:
    """What is told beside an error of shapes, one of which has as many rows as another on all ``workers``."""
    if "NoneType" in error or "None values" in error:
        return (
            "If the step takes the number of rows from x.shape[0]: a worker's part of a batch may have any number of "
            "rows, so that is None there. Take tf.shape(x)[0]; or let batch_size be a multiple of the workers, with "
            "drop_remainder=True."
        )
    if "unknown TensorShape" in error or "unknown rank" in error:
        return (
            "A worker's part of a batch may have any number of rows, one as well, so that squeeze() without an axis "
            "leaves an unknown shape there. Name the axis, as in keras.ops.squeeze(labels, -1), or train with -n 1."
        )
    said = error.partition("Arguments received by")[0]  # of a layer, whatever its error is about
    shapes = re.findall(r"[\[(]\d+(?:, ?\d+)*,?[\])]", said) if "shape" in said.lower() else ()
    numbers = {int(number) for shape in shapes for number in re.findall(r"\d+", shape)}
    if not any({n // workers, -(-n // workers)} & (numbers - {0, 1, n}) for n in numbers):
        return ""
    return (
        f"If the step counts on all rows of a batch: each of {workers} workers has a part of them. Take the number "
        "from the batch itself, as by tf.shape(x)[0], or train with one worker (-n 1)."
    )


def of_metric(metric: Any) -> str:
    """What is told of a metric whose state is not added up."""
    return (
        f"Metric {metric.name!r} is not made of sums over rows, so that its value over several workers is not that of "
        "one process. Weights are those of one process unless a callback acts on it."
    )


def of_gradients_by_metrics(model: Any) -> str:
    """What is said where a step goes by its metrics."""
    return (
        f"The step of model {model.name!r} goes by what its metrics hold, as by self.metric.result(): before the end "
        "of an epoch that is each worker's own. Keep the number in a variable of the model that changes by means over "
        "rows, as self.mean.assign(0.9 * self.mean + 0.1 * loss), or train with one worker (-n 1)."
    )


def of_large(name: str) -> str:
    """What is told of a loss that is computed of a worker's own rows, for its outputs are too large to be exchanged."""
    return (
        f"Loss {name!r} gives one number for a batch, not one for each row, and its outputs are too large to be "
        "exchanged between workers. In the first batch it was a mean or a sum over rows, and it is taken for that in "
        "all. If it divides by what only some batches have, as by the number of unmasked rows, give a loss for each "
        "row, with sample_weight."
    )


def of_traces(names: Iterable[str]) -> str:
    """What is told of Python code that changes something by these ``names`` while a graph is made."""
    return (
        f"The step is a graph: its Python code runs where the graph is made, and changes {', '.join(sorted(names))}. "
        "That may be another number of times than in one process, as where a last batch is smaller. If weights go by "
        "it, keep it in a variable (add_weight())."
    )


def of_tables() -> str:
    """What is told of a step that writes into a lookup table."""
    return (
        "The step writes into a lookup table. Each worker has its own, with what its own rows gave. If weights or "
        "results go by it, keep it in a variable (add_weight()), which is brought together, or train with -n 1."
    )
