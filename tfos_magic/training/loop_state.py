"""What is under way in a run on one rank: the loop, the step, and who takes part."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

from tfos_magic.errors import RunStopped
from tfos_magic.training import refusals
from tfos_magic.training.context import RunContext
from tfos_magic.training.inputs.own_reads import Looks
from tfos_magic.training.keras_seam.data.data_waits import DataClock
from tfos_magic.training.keras_seam.data.python_calls import PythonCalls
from tfos_magic.training.keras_seam.predict_states import PredictStates
from tfos_magic.training.keras_seam.random_numbers import RandomStreams
from tfos_magic.training.keras_seam.seams import replaced
from tfos_magic.training.logs.progress import Reporter
from tfos_magic.training.loop import Loop
from tfos_magic.training.step import Step, Trying
from tfos_magic.training.stop_votes import StopVotes
from tfos_magic.training.strategies.strategy import Strategy

_REMEMBERED = 8
"""Optimizers whose variables are compared at the end of a cell."""


class TrainingState:
    """One run of one cell. Everything here happens in the thread that runs the cell.

    Others, in which input pipelines call Python code of the cell, have no part in its steps.
    """

    def __init__(self, context: RunContext, strategy: Strategy) -> None:
        self._thread = threading.get_ident()
        self.context = context
        self.collectives = context.collectives
        self.strategy = strategy
        self.loops: list[Loop] = []
        self._step: Step | None = None
        self._trial: Trying | None = None
        self.applying = False
        self._apart = False
        self.initialising = False
        self.draws_shares = self.traces_shares = False
        self.holds_shares: Callable[[], bool] = lambda: True
        """Whether the iterator that shares were drawn from is there: a loop that was left has none any more."""
        self.assigned: dict[int, tf.Variable] = {}
        self.saves: list[int] = []
        self.ending: list[Callable[[], None]] = []
        self.learning: OrderedDict[tuple[int, ...], list[Any]] = OrderedDict()
        self.streams = RandomStreams(self.collectives.rank, self._draws_apart, lambda: self.initialising)
        with tf.device("CPU:0"):
            stop = context.stop
            self.votes = StopVotes(lambda: stop.requested, lambda: stop.leaving == "step")
            self._rows = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_rows")
            self.copied = tf.Variable(False, trainable=False, name="tfos_copied")
        self._predict_states: weakref.WeakKeyDictionary[Any, PredictStates] = weakref.WeakKeyDictionary()
        self.changing_python: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models whose steps change what Python keeps."""
        self.data_clock = DataClock()
        self.python_calls = PythonCalls()
        self.reporter = Reporter(
            context.run_id,
            self.collectives.rank,
            context.emit,
            lambda: self.rows_trained,
            lambda: self.collectives.sent,
            lambda: (self.data_clock.seconds, self.collectives.waited, self.collectives.exchanged),
            self.collectives.size,
        )
        self.looks = Looks(context.calls, self.reporter, lambda: self.rows_trained)

    def states_of(self, model: Any) -> PredictStates:
        """What is known of how ``model`` predicts."""
        return self._predict_states.setdefault(model, PredictStates())

    def remember(self, variables: Sequence[Any]) -> None:
        """Keep what was trained last, to be compared at the end of the cell.

        It is known by the variables, which are kept: the number of an optimizer that is gone may be another one's.
        """
        key = tuple(map(id, variables))
        self.learning[key] = list(variables)
        self.learning.move_to_end(key)
        if len(self.learning) > _REMEMBERED:
            self.learning.popitem(last=False)

    @property
    def in_cell(self) -> bool:
        """Whether this thread is the one that runs the cell."""
        return threading.get_ident() == self._thread

    @property
    def step(self) -> Step | None:
        """The step under way, or being traced, in this thread."""
        return self._step if self.in_cell else None

    @step.setter
    def step(self, step: Step | None) -> None:
        self._step = step

    @property
    def trial(self) -> Trying | None:
        """The step that this thread tries or builds."""
        return self._trial if self.in_cell else None

    @trial.setter
    def trial(self, trial: Trying | None) -> None:
        self._trial = trial

    @property
    def apart(self) -> bool:
        """Whether this thread computes as a replica of ``tf.distribute``, which says itself what replicas exchange."""
        return self._apart and self.in_cell

    def computing_apart(self, apart: bool) -> AbstractContextManager[None]:
        """In the block this thread computes as such a replica, or does not."""
        return replaced(self, "_apart", apart)

    @property
    def many(self) -> bool:
        return self.collectives.size > 1 and not self.apart

    def owns(self, path: str) -> bool:
        """Whether a file with what the ranks have in common is to be written to ``path`` by this rank for itself."""
        return self.exact and self.context.owns(path)

    @property
    def rows_trained(self) -> int:
        """Rows of this rank that training has used so far."""
        return int(self._rows.numpy())

    @property
    def exact(self) -> bool:
        """Whether a step is the step of one process on the global batch."""
        return self.many and self.strategy.exact

    @property
    def exact_step(self) -> Step | None:
        """The step under way, where what it computes over its batch spans all ranks."""
        return self.step if self.exact else None

    @property
    def loop(self) -> Loop | None:
        """The innermost ``fit``, ``evaluate`` or ``predict``."""
        return self.loops[-1] if self.loops else None

    @property
    def sharing(self) -> bool:
        """Whether rows, losses and metrics at this moment belong to a global batch that several ranks share."""
        return self.many and self.loop is not None and self.loop.kind != "predict"

    def was_to_be_compiled(self, model: Any) -> bool:
        """Whether the steps of ``model`` that are under way were to be compiled by XLA as a whole."""
        return any(loop.restore_jit for loop in self.loops if loop.model is model)

    @contextmanager
    def entered(self, kind: str, model: Any) -> Iterator[Loop]:
        if self.many and kind != "predict":
            refusals.refuse_threads(kind)
        loop = Loop(kind, model)
        loop.heeds_batches = self.loop is not None and self.loop.heeds_batches
        self.loops.append(loop)
        try:
            yield loop
            if kind == "fit" and len(self.loops) == 1:
                self.report("rest", loop)
        finally:
            self.loops.pop()
            if loop.restore_jit:
                model.jit_compile = True

    def drawing_for_shares(self) -> AbstractContextManager[None]:
        """What is traced in the block draws random numbers for rows of this rank alone."""
        return replaced(self, "traces_shares", True)

    def drawing_alike(self) -> AbstractContextManager[None]:
        """What is drawn in the block are initial values, which all ranks draw alike."""
        return replaced(self, "initialising", True)

    def _draws_apart(self) -> bool:
        """Whether random numbers that are drawn now are for rows of this rank alone."""
        within = self.step is not None or self.traces_shares or (self.draws_shares and self.holds_shares())
        return within and self.trial is None and self.collectives.size > 1

    def report(self, phase: str, loop: Loop, logs: Any = None) -> None:
        shown = logs if isinstance(logs, dict) else {}
        self.reporter.progress(
            phase, epoch=loop.epoch, epochs=loop.epochs, step=loop.step, steps=loop.steps, metrics=shown
        )

    def raise_stopped(self, where: str) -> None:
        raise RunStopped(
            f"the run was stopped in {where}, at the same step on every worker. Run the cell to start again."
        )

    def count(self, rows: tf.Tensor) -> None:
        self._rows.assign_add(tf.cast(rows, tf.int64))

    def heed_stop(self, where: str) -> None:
        """Raise :class:`RunStopped` where the last step told all ranks that one was asked to stop."""
        if self.votes.counted()[0]:
            self.raise_stopped(where)
