"""From the magic's options to what a run is told of data, strategy and checkpoints; what does not fit is refused, and
what a running cluster ignores is said."""

from __future__ import annotations

from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from tfos_magic.cluster.runs.request import RunRequest
from tfos_magic.cluster.workers import ClusterSpec
from tfos_magic.errors import UsageError
from tfos_magic.notebook.capture import Captured
from tfos_magic.notebook.config import TFOS
from tfos_magic.transport.messages import StrategyOptions

AT_START = "Such options apply when a cluster starts: `%tfos stop`, then run the cell again."


def source_of(shell: Any, magic: str, body: str) -> str:
    """The Python of a cell below ``magic``, line for line: IPython drops blank ones that it begins with."""
    blank = takewhile(lambda line: not line.strip(), body.splitlines())
    return f"# {magic}\n" + "\n" * len(list(blank)) + str(shell.transform_cell(body))


def options_of(args: Any) -> dict[str, Any]:
    """The strategy's options that were given, by name. Raises :class:`UsageError` for those of another strategy."""
    owners = {"ps": ["async"], **{each.name: each.metadata["strategies"] for each in fields(StrategyOptions)}}
    given = {name: getattr(args, name) for name in owners if getattr(args, name) is not None}
    for name in given:
        if args.strategy not in owners[name]:
            owner = " or ".join(owners[name])
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to --strategy {owner}, and this run is {args.strategy}: "
                f"add --strategy {owner}, or leave it out."
            )
    if given.pop("ps", None) == 0:
        raise UsageError("--strategy async needs parameter servers: give --ps 1 or more.")
    return given


def servers_for(args: Any, config: TFOS) -> int | None:
    """Parameter servers that a new cluster needs; None where any cluster will do."""
    if args.ps is not None:
        return int(args.ps)
    return max(1, config.ps) if getattr(args, "strategy", "") == "async" else None


def ignored_options(args: Any, spec: ClusterSpec, encrypted: bool) -> str:
    """A warning where ``args`` ask the running cluster of ``spec`` for what a cluster takes only when it starts; else
    an empty text. ``encrypted`` is what it decided for itself."""
    least, most = args.workers, getattr(args.workers, "most", 0)
    asked: dict[str, tuple[Any, Any]] = {
        "-n": (least and (f"{least}:{most}" if most else int(least)), _extent_of(spec, least, most)),
        "--ps": (args.ps, spec.servers),
        "--cores": (args.cores, spec.cores),
        "--gpus": (args.gpus, spec.gpus),
        "--encrypt": (args.encrypt, _encrypt_of(args.encrypt, spec, encrypted)),
        "--start-timeout": (args.start_timeout, spec.start_timeout),
        "--spool-gb": (args.spool_gb, spec.spool_gb),
        "--idle-timeout": (args.idle_timeout, spec.idle_timeout),
        "--via": (args.via, spec.via or "the control socket"),
    }
    ignored = [
        f"{name} {_shown(wanted)} (it has {_shown(has)})"
        for name, (wanted, has) in asked.items()
        if wanted is not None and wanted != has
    ]
    return f"The running cluster ignores {', '.join(ignored)}. {AT_START}" if ignored else ""


def _shown(value: Any) -> str:
    return "half of the free disk" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _extent_of(spec: ClusterSpec, least: int | None, most: int) -> Any:
    """How many workers the cluster may have, as ``-n`` says it; one that may change has no single number."""
    if spec.most_workers:
        return f"{spec.workers}:{spec.most_workers}"
    return f"{spec.workers}, and stays at that" if most else least


def _encrypt_of(asked: str | None, spec: ClusterSpec, encrypted: bool) -> str:
    return "auto" if asked == spec.encrypt == "auto" else "on" if encrypted else "off"


def reading_of(args: Any, config: TFOS) -> dict[str, Any]:
    """The fields of a run's request that say how its DataFrames are read."""
    return {
        "batch_size": args.batch_size or config.batch_size,
        "shuffle": not args.no_shuffle,
        "seed": args.seed,
    }


def cell_request(
    source: str, name: str, captured: Captured, args: Any, config: TFOS, main: dict[str, Any], **more: Any
) -> RunRequest:
    """The request of a run called ``name`` of a cell, with what was ``captured`` for it from the namespace ``main``,
    and the options that all magics have which send a cell; ``more`` are those of one of them."""
    return RunRequest(
        source=source,
        name=name,
        filename=f"<{name}>",
        modules=captured.modules,
        frames=captured.frames,
        payload=captured.payload,
        **reading_of(args, config),
        outputs=args.output,
        main=main,
        **more,
    )


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
