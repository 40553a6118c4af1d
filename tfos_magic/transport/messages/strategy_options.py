"""What can be set of a strategy. A field here is an option of ``%%tfos_train`` and ``TFCluster.run``, and the workers
get it typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tfos_magic.errors import TrainingError, UsageError
from tfos_magic.limits import above_zero, counting, momentum, positive

STRATEGIES = ("sync", "async", "local")
TOGETHER = ("sync", "local")
"""Those whose workers wait for each other, so that a run can go on with others."""
AS_WRITTEN = "as written"
"""Of programs that say by ``tf.distribute`` how they are distributed, and that may be fed rows."""
APART = ("none", AS_WRITTEN)
"""What else a run may be: each worker runs the cell by itself."""
COMPRESSIONS = ("none", "float16", "bfloat16", "int8")


def _option(strategies: str, default: Any, reads: Callable[[str], Any] | tuple[str, ...], text: str) -> Any:
    """A field that belongs to ``strategies``: how it is read from text, or what it may be, and its help."""
    return field(default=default, metadata={"strategies": strategies.split(), "reads": reads, "help": text})


@dataclass(frozen=True)
class StrategyOptions:
    """The options of all strategies. Raises :class:`TrainingError` for values that mean nothing."""

    bucket_mb: float = _option("sync", 16.0, above_zero, "megabytes of gradients summed in one go.")
    compression: str = _option(
        "sync local",
        "none",
        COMPRESSIONS,
        "how float32 gradients, or changes of weights, travel; other than none is not exact, int8 is for local.",
    )
    per_worker_batches: bool = _option(
        "sync",
        False,
        bool,
        "each worker's part of a batch is a batch of its own, as in Horovod; for losses that compare rows.",
    )
    max_staleness: int = _option("async", 16, counting, "steps a worker may be ahead of the slowest.")
    sync_every: int = _option("local", 16, positive, "steps between two averages of the weights.")
    average_state: bool = _option("local", False, bool, "average optimizer state as well.")
    outer_momentum: float = _option("local", 0.0, momentum, "momentum of the averages, as in DiLoCo.")
    outer_learning_rate: float | None = _option("local", None, above_zero, "how far to go towards the average.")
    fragments: int = _option("local", 1, positive, "parts of the weights that are averaged in turn.")
    overlap: int = _option("local", 0, counting, "steps that are taken while an average is under way.")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, reads = getattr(self, each.name), each.metadata["reads"]
            try:
                if isinstance(reads, tuple) and value not in reads:
                    raise UsageError(f"{value!r} is none of {', '.join(reads)}.")
                if callable(reads) and value != each.default:
                    reads(str(value))
            except UsageError as error:
                raise TrainingError(f"option {each.name}: {error}") from None
        if self.sync_every % self.fragments:
            raise TrainingError(
                f"{self.fragments} fragments cannot take turns in {self.sync_every} steps: let sync_every be a "
                "multiple of fragments."
            )
        if self.overlap >= self.sync_every // self.fragments:
            raise TrainingError(
                f"an average that takes {self.overlap} steps is not done when the next one begins, after "
                f"{self.sync_every // self.fragments}: let overlap be less than sync_every / fragments."
            )

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @classmethod
    def of(cls, strategy: str, given: Mapping[str, Any]) -> StrategyOptions:
        """Those ``given`` to a run of ``strategy``. Raises :class:`UsageError` for what it does not have."""
        known = {each.name for each in fields(cls) if strategy in each.metadata["strategies"]}
        if unknown := given.keys() - known:
            raise UsageError(
                f"strategy {strategy} has no option {', '.join(sorted(unknown))}: it has {', '.join(sorted(known))}."
            )
        if strategy == "sync" and given.get("compression") == "int8":
            raise UsageError(
                "gradients of strategy sync travel in 16 bits at least: take bfloat16, or strategy local, whose "
                "averages carry on what int8 leaves out."
            )
        return cls(**given)
