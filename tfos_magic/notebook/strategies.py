"""From the magic's options to what a run is told of data, strategy and checkpoints; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfos_magic.errors import UsageError
from tfos_magic.notebook.config import TFOS

_OF_STRATEGY = {
    "sync": ("bucket_mb", "compression", "per_worker_batches"),
    "async": ("ps", "max_staleness"),
    "local": ("sync_every", "average_state", "outer_momentum", "outer_learning_rate"),
}


def options_of(args: Any) -> dict[str, Any]:
    """The strategy's options that were given, by name. Raises :class:`UsageError` for those of another strategy."""
    for strategy, names in _OF_STRATEGY.items():
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
        if given and strategy != args.strategy:
            raise UsageError(
                f"{', '.join(given)} belongs to --strategy {strategy}, and this run is {args.strategy}: add "
                f"--strategy {strategy}, or leave it out."
            )
    if args.strategy == "async" and args.ps == 0:
        raise UsageError("--strategy async needs parameter servers: give --ps 1 or more.")
    own = [name for name in _OF_STRATEGY[args.strategy] if name != "ps"]
    return {name: getattr(args, name) for name in own if getattr(args, name) is not None}


def servers_for(args: Any, config: TFOS) -> int | None:
    """Parameter servers that a new cluster needs; None where any cluster will do."""
    if args.ps is not None:
        return int(args.ps)
    return max(1, config.ps) if getattr(args, "strategy", "") == "async" else None


def reading_of(args: Any, config: TFOS) -> dict[str, Any]:
    """The fields of a run's request that say how its DataFrames are read."""
    return {
        "batch_size": args.batch_size or config.batch_size,
        "shuffle": not args.no_shuffle,
        "seed": args.seed,
    }


def checkpoints_of(args: Any, config: TFOS) -> dict[str, Any]:
    """The fields of a run's request that say how it is kept and restarted."""
    folder = config.checkpoint_dir if args.checkpoint_dir is None else args.checkpoint_dir
    if args.resume and not folder:
        raise UsageError("--resume needs to know where the checkpoints are: add --checkpoint-dir DIR.")
    if folder and "://" not in folder:
        folder = str(Path(folder).expanduser().absolute())
    return {
        "checkpoint_dir": folder,
        "checkpoint_every": args.checkpoint_every or 0,
        "keep_checkpoints": args.keep or config.keep_checkpoints,
        "resume": args.resume,
        "max_restarts": config.max_restarts if args.max_restarts is None else args.max_restarts,
    }
