"""The state of one run on one rank, between the patches of Keras and the strategy."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.errors import RunStopped, TrainingError
from tfos_magic.training import agreement, checks, metrics
from tfos_magic.training.checkpoints.recorder import Recorder
from tfos_magic.training.context import RunContext
from tfos_magic.training.digests import of_arrays, without_digest
from tfos_magic.training.fedrows import Looks
from tfos_magic.training.firststep.check import FirstStep
from tfos_magic.training.firststep.statistics import Statistics
from tfos_magic.training.firststep.trial import Discarded, Trial, TrialStep
from tfos_magic.training.loop import Loop
from tfos_magic.training.progress import Reporter, flat
from tfos_magic.training.randomness import Streams
from tfos_magic.training.replicas import Replicas
from tfos_magic.training.step import Step, rows_in, with_stand_in
from tfos_magic.training.strategy import Strategy
from tfos_magic.training.waits import DataClock


class Session:
    """One run of one cell. Everything here happens in the thread that runs the cell."""

    def __init__(self, context: RunContext, strategy: Strategy) -> None:
        self.context = context
        self.collectives = context.collectives
        self.strategy = strategy
        self.loops: list[Loop] = []
        self.step: Step | None = None
        self.applying = False
        self.initialising = False
        self.draws_shares = False
        self.assigned: dict[int, tf.Variable] = {}
        self.looks = Looks(self)
        self.learning: OrderedDict[int, list[Any]] = OrderedDict()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self.trial: Trial | Discarded | None = None
        self.replicas = Replicas(self)
        self.first_step = FirstStep(self)
        self.streams = Streams(self.collectives.rank, self._draws_apart)
        with tf.device("CPU:0"):
            self._ballot = tf.Variable([0.0, 0.0], trainable=False, name="tfos_ballot")
            self._tally = tf.Variable([0.0, 0.0, 0.0], trainable=False, name="tfos_tally")
            self._rows = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_rows")
            self._last_rows = tf.Variable(0.0, trainable=False, name="tfos_last_rows")
            self.copied = tf.Variable(False, trainable=False, name="tfos_copied")
        self.data_clock = DataClock()
        self._cast_vote = (0.0, 0.0)
        self._test_votes = False
        self.reporter = Reporter(
            context.run_id,
            self.collectives.rank,
            context.emit,
            lambda: self.rows_trained,
            lambda: self.collectives.sent,
            lambda: (self.data_clock.seconds, self.collectives.waited),
        )
        self.recorder = Recorder(context, self)

    @property
    def many(self) -> bool:
        return self.collectives.size > 1

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

    @contextmanager
    def entered(self, kind: str, model: Any) -> Iterator[Loop]:
        loop = Loop(kind, model)
        loop.heeds_batches = self.loop is not None and self.loop.heeds_batches
        self.loops.append(loop)
        try:
            yield loop
        finally:
            self.loops.pop()
            if loop.restore_jit:
                model.jit_compile = True

    @contextmanager
    def building(self) -> Iterator[None]:
        """A step is traced for the variables that it makes, and never runs: it exchanges nothing."""
        self.step, self.trial = TrialStep(1, 1, []), Discarded()
        try:
            yield
        finally:
            self.step = self.trial = None

    def heed_assigned(self) -> None:
        """At the end of a cell: refuse weights that a loop of its own has left different on the workers."""
        if not (self.many and self.strategy.lockstep) or self.collectives.lost:
            return
        digests = self.collectives.gather([of_arrays([v.read_value() for v in self.assigned.values()])])
        if (digests != digests[0]).any():
            checks.refuse_apart([v.name for v in list(self.assigned.values())[:3]])
        agreement.refuse_parted(self, [v for variables in self.learning.values() for v in variables])

    def close(self) -> None:
        """Drop the functions that were traced with this run's collectives, so that a later run makes its own."""
        self.recorder.close()
        for model in list(self._models):
            model.train_function = None
            model.test_function = None

    # Steps

    def traced(self, model: Any, step: Callable[[Any], Any], training: bool) -> Callable[[Any], Any]:
        """Wrap a Keras step, which runs while a graph is traced, or at each step of an eager model."""

        def traced_step(element: Any) -> Any:
            data, digest = without_digest(element)
            rows = rows_in(data)
            self.step = self.new_step(tf.cast(rows, tf.float32), digest)
            try:
                logs = self._counted_step(model, step, data, rows) if self.many else step(data)
                if training and self.many and not self.step.has_voted:
                    self.step.total()
                if not training:
                    self._test_votes = self.step.has_voted
            finally:
                self.step = None
            if training:
                self._rows.assign_add(rows)
            if self.many and training:
                checks.note_draws(self.streams.taken(), self.reporter)
            return logs

        self._models.add(model)
        return traced_step

    def new_step(self, rows: tf.Tensor, digest: tf.Tensor | None = None) -> Step:
        return Step(rows, self._ballot.read_value(), self._tally, self.collectives, self.copied.read_value(), digest)

    def _counted_step(self, model: Any, step: Callable[[Any], Any], data: Any, rows: tf.Tensor) -> Any:
        """Run a step on a stand-in where this rank has no rows, and undo what that did to the metrics, and to moving
        averages that are this rank's own."""
        touched = metrics.state(model)
        if not self.strategy.exact:
            touched += [metrics.raw(v) for v in model.non_trainable_variables if v.dtype in metrics.NUMBERS]
        states = [(variable, variable.read_value()) for variable in touched]
        statistics = Statistics(self.first_step.statistics.get(model, []))
        logs = step(with_stand_in(data, rows))
        if self.step is not None:
            statistics.unite(self.step)

        def undo() -> None:
            for variable, before in states:
                variable.assign(before)

        tf.cond(rows > 0, lambda: None, undo)
        self._last_rows.assign(tf.cast(rows, tf.float32))
        return logs

    @contextmanager
    def drawing_for_shares(self) -> Iterator[None]:
        """What is traced in the block draws random numbers for rows of this rank alone."""
        before, self.draws_shares = self.draws_shares, True
        try:
            yield
        finally:
            self.draws_shares = before

    def _draws_apart(self) -> bool:
        """Whether random numbers that are drawn now are for rows of this rank alone."""
        within = self.step is not None or self.draws_shares
        return within and self.trial is None and not self.initialising and self.many

    def _advance(self, model: Any, inner: Callable[[Any], Any], iterator: Any) -> tuple[Any, Any]:
        """Cast this rank's vote and take a step, or ``steps_per_execution`` of them; gives the loop and the logs."""
        loop = self._loop_of(model)
        if self.many:
            self.vote(bool(model.__dict__.get("stop_training", False)))
            if self.exact and isinstance(model, keras.Model) and not (loop.broadcast_late or self.copied.numpy()):
                iterator = self.first_step.check(model, iterator, loop)
        steps = int(model.steps_per_execution)  # a variable in tf_keras
        with self.collectives.waiting("a step", self.collectives.timeout * steps):
            logs = inner(iterator)
        loop.step += steps
        return loop, logs

    def training_function(self, model: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the function that Keras calls for each training step, or each ``steps_per_execution`` of them."""

        def train(iterator: Any) -> Any:
            loop, logs = self._advance(model, inner, iterator)
            if loop.broadcast_late:
                self.replicas.take_over_late(model, loop)
            self._heed_votes(loop)
            if loop.heeds_batches:
                logs = metrics.of_all_ranks(model, flat(logs), self.collectives, float(self._last_rows.numpy()))
            return self._reported("train", loop, logs)

        train.tfos_session = self  # type: ignore[attr-defined]
        return train

    def test_function(self, model: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the function that Keras calls for each test step.

        Where test steps exchange nothing, ranks need no common step to stop: each leaves when it is asked to, and the
        sum of the metrics, to which all come, carries the vote.
        """

        def test(iterator: Any) -> Any:
            loop, logs = self._advance(model, inner, iterator)
            if loop.heeds_batches:
                if self.collectives.gather([self.context.stop.requested]).any():
                    self.raise_stopped("validation")
                logs = metrics.of_all_ranks(model, flat(logs), self.collectives, float(self._last_rows.numpy()))
            elif self.many and not self._test_votes:
                model.stop_evaluating = getattr(model, "stop_evaluating", False) or self.context.stop.requested
            elif self._tally.numpy()[0] > 0 if self.many else self.context.stop.requested:
                self.raise_stopped("validation")
            return self._reported("validate", loop, logs)

        test.tfos_session = self  # type: ignore[attr-defined]
        return test

    def _reported(self, phase: str, loop: Loop, logs: Any) -> Any:
        if loop.finish is not None:
            return loop.finish(logs)
        if self.reporter.due():
            self.report(phase, loop, logs)
        return logs

    def report(self, phase: str, loop: Loop, logs: Any = None) -> None:
        shown = logs if isinstance(logs, dict) else {}
        self.reporter.progress(
            phase, epoch=loop.epoch, epochs=loop.epochs, step=loop.step, steps=loop.steps, metrics=shown
        )

    def raise_stopped(self, where: str) -> None:
        raise RunStopped(
            f"the run was stopped in {where}, at the same step on every worker. Run the cell to start again."
        )

    def _loop_of(self, model: Any) -> Loop:
        if self.loop is None or self.loop.model is not model:
            raise TrainingError("a training function of fit() was called outside of it: call model.fit() instead.")
        return self.loop

    def vote(self, end: bool = False) -> None:
        """Say in the next step whether this rank was asked to stop the run, and whether it wants training to end."""
        vote = (float(self.context.stop.requested), float(end))
        if vote != self._cast_vote:
            self._ballot.assign(vote)
            self._cast_vote = vote

    def _heed_votes(self, loop: Loop) -> None:
        if not self.many:
            if self.context.stop.requested:
                self.raise_stopped(f"epoch {loop.epoch + 1}")
            return
        stop, end, apart = self._tally.numpy()
        if apart > 0:
            checks.refuse_other_values()
        if end > 0:
            self.agree_to_end(loop)
        if stop > 0:
            self.raise_stopped(f"epoch {loop.epoch + 1}")

    def apart(self) -> tf.Tensor:
        """Above 0 where the digests of the last step were not the same on all ranks; of :func:`digests.apart`."""
        return self._tally.read_value()[2]

    def heed_stop(self, where: str) -> None:
        """Raise :class:`RunStopped` where the last step told all ranks that one was asked to stop."""
        if self._tally.numpy()[0] > 0:
            self.raise_stopped(where)

    def count(self, rows: tf.Tensor) -> None:
        self._rows.assign_add(tf.cast(rows, tf.int64))

    def agree_to_end(self, loop: Loop) -> None:
        loop.agreed = True
        loop.model.__dict__["stop_training"] = True

    def poll_end(self, loop: Loop) -> None:
        """After an epoch, or a batch: all ranks end the training when any of them wants to."""
        wish = bool(loop.model.__dict__.get("stop_training", False))
        if self.collectives.gather([wish]).any():
            self.agree_to_end(loop)
        if self.strategy.lockstep:
            agreement.refuse_other(self.collectives, agreement.of_optimizers(loop.model), self.context.calls.rank)

    # Metrics

    def global_logs(self, original: Callable[..., Any], model: Any, logs: Any) -> Any:
        """Stand in for Keras's reading of the metrics after an epoch or an evaluation."""
        if not self.sharing:
            return original(model, logs)
        if self.loops[-1].kind == "fit":
            self.strategy.settle(model)
        if not (self.strategy.exact and isinstance(model, keras.Model)):
            metrics.report_unknown(model, self.reporter)
        own = metrics.results_in(model, logs)
        if metrics.sum_over_ranks(model, self.collectives, self.context.stop.requested):
            self.raise_stopped("validation" if self.loops[-1].kind == "evaluate" else "training")
        result = original(model, logs)
        if result is logs and isinstance(logs, dict) and logs:
            return metrics.average_logs(model, flat(logs), own, self.collectives, float(self._last_rows.numpy()))
        return result
