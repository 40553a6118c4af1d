"""What a run is asked to do, and who watches it."""

from __future__ import annotations

import math
import operator
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tfos_magic.checkpoints.store import FLUSH_SECONDS, CheckpointStore
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.cluster.startup import Waits, heard_somewhere, tell, tell_while
from tfos_magic.columns.columns import FeedPlan
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import EVERYTHING, Selection
from tfos_magic.errors import DataError, UsageError
from tfos_magic.feed.driver.streaming_query import as_streaming
from tfos_magic.spark.connect.reachability import check_server
from tfos_magic.spark.session import is_dataframe, is_stopped
from tfos_magic.transport.messages import APART, TOGETHER, Answer, Question, StrategyOptions

RETURNED = "returned_"
"""The name of what a function returns that is run as a cell."""

_SECRET = re.compile(r"(?i)key|token|secret|passw|credential|auth|pwd")
_LONGEST = 80  # characters of a text by which people tell runs apart
SEEDS = 2**32
"""How many seeds there are: NumPy's generators take no others."""


class Observer:
    """Who watches a run: called in the thread that executes it, as often as something happened. This one looks away."""

    def open(self, state: RunState) -> None:
        """The run is about to begin, or to wait for its turn: called before all else, where the run was asked for."""

    def update(self, state: RunState) -> None:
        """The run has gone on."""

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        """Text that a rank's cell printed: of rank 0, and of all ranks where they do not train together."""

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        """A MIME bundle that a rank's cell displayed, of the same ranks."""

    def close(self, state: RunState) -> None:
        """The run has ended; nothing is called after this."""


class _Given(Observer):
    """Passes on to an object that has ``update(state)`` and ``output(text, stream)``."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def update(self, state: RunState) -> None:
        self._given.update(state)

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        self._given.output(text, stream)


def observing(given: Any) -> Observer:
    """An observer, whether ``given`` is one or has only what is documented of one."""
    return given if isinstance(given, Observer) else _Given(given)


class Printer(Observer):
    """Prints what the first worker prints, as a program would that trains by itself, and notices to standard error."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def update(self, state: RunState) -> None:
        for text in state.notices:
            if text not in self._told:
                self._told.add(text)
                print(f"note: {text}", file=sys.stderr, flush=True)

    def close(self, state: RunState) -> None:
        self.update(state)

    def output(self, text: str, stream: str, rank: int = 0) -> None:
        print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)

    def show(self, data: dict[str, Any], metadata: dict[str, Any], rank: int = 0) -> None:
        print(data.get("text/plain", ""), flush=True)


@dataclass(frozen=True)
class FrameUse:
    """A DataFrame that the cell gets as a dataset of the ``selection``."""

    frame: Any
    plan: FeedPlan
    selection: Selection = EVERYTHING

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are features; none where some bring masks along, which no column has."""
        features = tuple(name for name in self.plan.sources if name not in self.selection.targets)
        return features if len(features) == len(self.plan.features) else ()


_WHOLE = {"batch_size": 1, "seed": 0, "checkpoint_every": 0, "keep_checkpoints": 1, "max_restarts": 0}
"""Options that are whole numbers, and the least that each may be."""


def whole_number(name: str, value: Any, least: int) -> int:
    """An option of that name as an int. Raises :class:`UsageError` for other kinds of numbers and all else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}: give a whole number from {least}.")
    return number


def switch(name: str, value: Any) -> bool:
    """An option of that name as a bool. Raises :class:`UsageError` for what is none."""
    if str(value) not in ("True", "False", "0", "1") or isinstance(value, str):
        raise UsageError(f"{name} is {value!r}: give True or False.")
    return bool(value)


def frame_use(name: str, frame: Any, selection: Selection, missing: Missing = NOTHING_MISSING) -> FrameUse:
    """Plan how a DataFrame is fed. Raises :class:`DataError` naming it when it cannot be fed as asked."""
    if is_dataframe(frame):
        if is_stopped(frame.sparkSession):
            raise DataError(
                f"DataFrame {name!r} belongs to a stopped Spark session: create it again in the current one."
            )
        with heard_somewhere(Waits()):
            check_server(frame.sparkSession, tell)
    if not hasattr(frame, "schema"):
        raise DataError(
            f"DataFrame {name!r} is {type(frame).__name__}: give a DataFrame of Spark, pandas or polars, an Arrow "
            "table or a dict of arrays."
        )
    try:
        plan = plan_feed(frame.schema, selection, missing)
    except DataError as error:
        raise DataError(f"DataFrame {name!r}: {error}") from None
    return FrameUse(frame, plan, replace(selection, features=plan.features))


def open_store(request: RunRequest, notify: Callable[[str], None]) -> CheckpointStore | None:
    """Where the run's checkpoints go, found out now; None where it takes none. ``notify`` is told of what is amiss."""
    if request.alone:
        return None
    if request.resume and not request.checkpoint_dir:
        raise UsageError("resume needs a checkpoint directory: set checkpoint_dir.")
    where = request.checkpoint_dir
    opened = partial(CheckpointStore, where, request.keep_checkpoints, resume=request.resume, notify=notify)
    return tell_while("the store of checkpoints", math.inf, opened) if "://" in where else opened()


def await_written(work: Callable[[], Any]) -> Any:
    """What ``work`` gives, which waits for a checkpoint to be written; tell meanwhile that it does."""
    return tell_while("the last checkpoint to be written", time.monotonic() + FLUSH_SECONDS, work)


def simple_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and short texts among ``values``, but for those whose name says that they are secret."""
    simple = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    return {name: value for name, value in simple.items() if len(str(value)) <= _LONGEST and not _SECRET.search(name)}


@dataclass(frozen=True)
class RunRequest:
    """All that a run needs. ``names`` are values to pickle, ``modules`` names bound to importable modules.

    Checkpoints go to
    ``checkpoint_dir`` (a path or URL; empty: beside the kernel, for this run's restarts alone), every
    ``checkpoint_every`` steps or, when 0, every epoch; the last ``keep_checkpoints`` stay. ``resume`` goes on from the
    newest one there. A run that loses a worker starts anew from its last checkpoint at most ``max_restarts`` times.

    Scalars, and copies of the event files that rank 0's cell writes, go to ``log_dir``; where that is empty, copies go
    to the folder that ``private_logs`` gives for the run's name. Temporary files of a cell go to the folder that
    ``private_files`` gives, by default one that goes with the cluster.

    The rows of DataFrames come to the cell in an order that ``seed`` makes, another one in every epoch, unless
    ``shuffle`` is off; ``seed`` seeds the workers' generators as well. Without one the cell goes on with the
    random states of this process, and this process with those that the cell leaves on rank 0; where it is ``detached``,
    with a seed drawn here.

    With ``strategy`` "none" the cell runs as it is, on ``ranks`` alone where that is not empty, and none waits for
    another: all come to their end, and nothing is tried again. ``notices`` are what the user should know beforehand.
    ``item`` holds more names, packed by themselves: those in which runs of one kind differ. ``simple`` are numbers and
    texts in the ``payload`` by which people tell runs apart, beside those among ``names``.
    ``main`` is the namespace that functions which come back see, and what they name; None: each run's are apart.
    ``answer`` gives the answer to what the cell asks, ``what`` and ``about``, as :class:`Question` says: it chooses
    what is suggested there, and says whether the outputs are wanted; None: a cell asks nothing.
    """

    source: str
    name: str = "run"
    filename: str = "<tfos cell>"
    names: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    frames: Mapping[str, FrameUse] = field(default_factory=dict)
    batch_size: int = 32
    shuffle: bool = True
    seed: int | None = None
    detached: bool = False
    outputs: Sequence[str] = ()
    strategy: str = "sync"
    options: StrategyOptions = field(default_factory=StrategyOptions)
    log_dir: str = ""
    private_logs: Callable[[str], str] | None = None
    private_files: Callable[[], str] | None = None
    payload: bytes | None = None
    item: bytes = b""
    simple: Mapping[str, Any] = field(default_factory=dict)
    main: dict[str, Any] | None = None
    checkpoint_dir: str = ""
    checkpoint_every: int = 0
    keep_checkpoints: int = 3
    resume: bool = False
    max_restarts: int = 2
    ranks: Sequence[int] = ()
    notices: Sequence[str] = ()
    answer: Callable[[str, Mapping[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value, least))
        for name in ("shuffle", "resume"):
            object.__setattr__(self, name, switch(name, getattr(self, name)))
        if self.seed is not None and not 0 <= self.seed < SEEDS:
            raise UsageError(f"the seed is {self.seed}: give a whole number from 0 to {SEEDS - 1}.")

    def answered(self, question: Question) -> Answer:
        """The answer, or why there is none: the cell that asked raises that."""
        try:
            if self.answer is None:
                raise UsageError("nobody answers what this run asks.")
            told = {"value": self.answer(question.what, question.about)}
        except Exception as error:  # of a search, its sampler or its storage
            told = {"error": str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"}
        return Answer(question.run_id, question.number, told)

    def first_state(self, run_id: str, size: int, unsent: Sequence[str]) -> RunState:
        """What is known of a run with that id on ``size`` workers, before it begins."""
        return RunState(
            run_id=run_id,
            name=self.name,
            strategy=self.strategy,
            workers=[WorkerState(rank) for rank in range(size)],
            started=time.monotonic(),
            log_dir=self.log_dir,
            notices=[*self.notices, *unsent],
            settings=self.settings,
        )

    @property
    def settings(self) -> dict[str, str]:
        """What tells this run from others, in words: numbers and texts among its names, and its options."""
        chosen = simple_values({**self.names, **self.simple})
        options = {"batch size": self.batch_size, "strategy": self.strategy, "seed": self.seed}
        known = {**chosen, **options}
        return {
            name: f"{value:g}" if isinstance(value, float) else str(value)
            for name, value in known.items()
            if value is not None
        }

    @property
    def boundary(self) -> str:
        """Where the run may leave, to go on with other workers: after a ``step``, an ``epoch``, or nowhere (empty)."""
        if self.strategy not in TOGETHER or any(as_streaming(use.frame) for use in self.frames.values()):
            return ""
        return "epoch" if self.strategy == "local" or (self.frames and self.shuffle) else "step"

    @property
    def checkpoint_plan(self) -> dict[str, Any]:
        """When checkpoints are taken, as the workers are told."""
        return {"asked": bool(self.checkpoint_dir), "every": self.checkpoint_every}

    @property
    def alone(self) -> bool:
        """Whether each worker runs the cell by itself."""
        return self.strategy in APART

    def ranks_of(self, size: int) -> tuple[int, ...]:
        """Where the cell runs, of ``size`` workers. Raises :class:`UsageError` where there is no such worker."""
        if unknown := [rank for rank in self.ranks if not 0 <= rank < size]:
            raise UsageError(f"There is no worker {unknown[0]}: the cluster has workers 0 to {size - 1}.")
        return tuple(sorted(set(self.ranks))) or tuple(range(size))
