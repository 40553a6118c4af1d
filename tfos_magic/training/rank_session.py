"""The state of one run on one rank, between the patches of Keras and the strategy."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.errors import TrainingError
from tfos_magic.training import agreement, refusals
from tfos_magic.training.checkpointing.checkpointer import Checkpointer
from tfos_magic.training.context import RunContext
from tfos_magic.training.firststep.check import FirstStep
from tfos_magic.training.firststep.laws import Law
from tfos_magic.training.firststep.step_trial import Discarded, TrialStep
from tfos_magic.training.inputs.digests import without_digest
from tfos_magic.training.inputs.own_rows import comes_once, has_own_rows
from tfos_magic.training.inputs.passes import BegunPasses
from tfos_magic.training.logs import metrics
from tfos_magic.training.logs.derived import Derived
from tfos_magic.training.logs.progress import flat, nested
from tfos_magic.training.loop import Loop
from tfos_magic.training.loop_state import TrainingState
from tfos_magic.training.stand_ins import counted_step
from tfos_magic.training.step import Step, rows_in
from tfos_magic.training.strategies.replicas import Replicas
from tfos_magic.training.strategies.strategy import Strategy


class Session(TrainingState):
    """What Keras's functions are replaced by, in one run of one cell."""

    def __init__(self, context: RunContext, strategy: Strategy) -> None:
        super().__init__(context, strategy)
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self.replicas = Replicas(self, self.building)
        self.first_step = FirstStep(self)
        self.begun_passes = BegunPasses()
        with tf.device("CPU:0"):
            self._last_rows = tf.Variable(0.0, trainable=False, name="tfos_last_rows")
        self._test_votes = False
        self._derived = Derived()
        self.own_loop: Any = None
        """What is known of loops outside of ``fit``, where there are several ranks."""
        self.checkpointer = Checkpointer(context, self, self.replicas.build)

    @contextmanager
    def building(self) -> Iterator[None]:
        """A step is traced for the variables that it makes, and never runs: it exchanges nothing."""
        self.step, self.trial = TrialStep(1, 1, []), Discarded()
        try:
            yield
        finally:
            self.step = self.trial = None

    def close(self) -> None:
        """Drop the functions that were traced with this run's collectives, so that a later run makes its own."""
        self.checkpointer.close()
        for model in list(self._models):
            model.train_function = None
            model.test_function = None

    # Steps

    def traced(self, model: Any, step: Callable[[Any], Any], training: bool) -> Callable[[Any], Any]:
        """Wrap a Keras step, which runs while a graph is traced, or at each step of an eager model."""

        def traced_step(element: Any) -> Any:
            if tf.executing_eagerly() or not self.was_to_be_compiled(model):
                return whole_step(element)
            # What XLA compiles runs when all that it reads is there, so that no part of it runs when the data end.
            leaves = [e for e in tf.nest.flatten(element, expand_composites=True) if isinstance(e, tf.Tensor)]
            with tf.control_dependencies(leaves):
                return whole_step(element)

        def whole_step(element: Any) -> Any:
            data, digest = without_digest(element)
            rows = rows_in(data)
            self.step = self.new_step(tf.cast(rows, tf.float32), digest)
            try:
                logs = (
                    counted_step(self, model, self.first_step.statistics.get(model, []), step, data, rows)
                    if self.many
                    else step(data)
                )
                if training and self.many and not self.step.has_voted:
                    self.step.total()
                if not training:
                    self._test_votes = self.step.has_voted
            finally:
                self.step = None
            if training:
                self._rows.assign_add(rows)
            if self.many:
                self._last_rows.assign(tf.cast(rows, tf.float32))
                self._derived.trace(model, training, logs)
                where = () if training else ("an evaluation", "results")
                refusals.note_draws(self.streams.taken(), self.reporter, *where)
            return logs

        self._models.add(model)
        return traced_step

    def new_step(self, rows: tf.Tensor, digest: tf.Tensor | None = None) -> Step:
        votes = self.votes
        return Step(rows, votes.vote.read_value(), votes.vote_sum, self.collectives, self.copied.read_value(), digest)

    def _advance(self, model: Any, inner: Callable[[Any], Any], iterator: Any) -> tuple[Any, Any]:
        """Cast this rank's vote and take a step, or ``steps_per_execution`` of them; gives the loop and the logs."""
        loop = self._loop_of(model)
        if loop.opening is not None:
            loop.opening()
        if loop.kind == "fit" and loop.step and self._leaves():
            self.checkpointer.leave(loop)
        if self.many:
            if loop.step == 0 and not loop.kind.endswith("_on_batch"):
                loop.metrics_before = metrics.begun(model)
            if has_own_rows(iterator):
                iterator = self._drawn_together(loop, iterator, int(model.steps_per_execution))
            self.votes.cast(bool(model.stop_training))
            copied = loop.kind.endswith("_on_batch") and self.copied.numpy()
            if self.exact and isinstance(model, keras.Model) and not (loop.broadcast_late or copied):
                iterator = self.first_step.check(model, iterator, loop)
                self.replicas.trace_first(model)
        steps = int(model.steps_per_execution)  # a variable in tf_keras
        with self.collectives.waiting("a step", self.collectives.timeout * steps):
            logs = inner(iterator)
        loop.step += steps
        return loop, logs

    def _leaves(self) -> bool:
        """Whether all ranks know since the last step that the run goes on elsewhere."""
        return self.votes.left() if self.many else self.context.stop.leaving == "step"

    def _drawn_together(self, loop: Loop, iterator: Any, count: int) -> Iterator[Any]:
        """The next ``count`` batches of this rank's own rows, or as many as all ranks have.

        Raises ``StopIteration`` where one has none, which ends an epoch, or the training where rows come once.
        """
        batches = [batch for _, batch in zip(range(count), iterator, strict=False)]
        having = int(self.collectives.gather([len(batches)]).min())
        if not having:
            if loop.training and comes_once(iterator):
                self.agree_to_end(loop)
            raise StopIteration
        return iter(batches[:having])

    def training_function(self, model: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the function that Keras calls for each training step, or each ``steps_per_execution`` of them."""

        def train(iterator: Any) -> Any:
            loop, logs = self._advance(model, inner, iterator)
            if loop.broadcast_late:
                self.replicas.take_over_late(model, loop)
            self._heed_votes(loop)
            if loop.heeds_batches or (self.many and self.context.rows and loop.kind.endswith("_on_batch")):
                logs = self._of_all_ranks(model, logs)
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
                logs = self._of_all_ranks(model, logs)
            elif self.many and not self._test_votes:
                model.stop_evaluating = getattr(model, "stop_evaluating", False) or self.context.stop.requested
            elif self.votes.counted()[0] if self.many else self.context.stop.requested:
                self.raise_stopped("validation")
            return self._reported("validate", loop, logs)

        test.tfos_session = self  # type: ignore[attr-defined]
        return test

    def _of_all_ranks(self, model: Any, logs: Any) -> dict[str, Any]:
        again = partial(self._derived.again, model, self.loops[-1].training)
        rows, shown = float(self._last_rows.numpy()), flat(logs)
        values = metrics.of_all_ranks(
            model, shown, self.collectives, rows, again, self._laws_of(model, shown), self.loops[-1].metrics_before
        )
        return nested(logs, values)

    def _laws_of(self, model: Any, logs: Iterable[str]) -> dict[str, Law]:
        """How each of the logs of a step follows from its rows, as the trial of it has shown."""
        kind = "fit" if self.loops[-1].training else "evaluate"
        return {name: self.first_step.law_of_log(model, kind, name) for name in logs}

    def _reported(self, phase: str, loop: Loop, logs: Any) -> Any:
        if loop.finish is not None:
            return loop.finish(logs)
        if self.reporter.due():
            self.report(phase, loop, logs)
        return logs

    def _loop_of(self, model: Any) -> Loop:
        if self.loop is None or self.loop.model is not model:
            raise TrainingError("a training function of fit() was called outside fit(): call model.fit() instead.")
        return self.loop

    def _heed_votes(self, loop: Loop) -> None:
        if not self.many:
            if self.context.stop.requested:
                self.raise_stopped(f"epoch {loop.epoch + 1}")
            return
        stop, end, apart = self.votes.counted()
        if apart:
            refusals.refuse_other_values()
        if end:
            self.agree_to_end(loop)
        if stop:
            self.raise_stopped(f"epoch {loop.epoch + 1}")

    def agree_to_end(self, loop: Loop) -> None:
        loop.agreed = loop.model.stop_training = True

    def poll_end(self, loop: Loop, logs: Mapping[str, Any] | None = None) -> None:
        """After an epoch, whose ``logs`` are compared, or a batch: all ranks end the training when any wants to."""
        digests = agreement.of_optimizers(loop.model) | agreement.of_logs(loop, logs or {})
        wish = loop.model.stop_training
        loop.agreed = agreement.any_wishes(self, wish, digests if self.strategy.lockstep else {})
        loop.model.stop_training = loop.agreed

    # Metrics

    def global_logs(self, original: Callable[..., Any], model: Any, logs: Any) -> Any:
        """Stand in for Keras's reading of the metrics after an epoch or an evaluation."""
        if not self.sharing:
            return original(model, logs)
        if self.loops[-1].kind == "fit":
            self.strategy.settle(model)
        if self.strategy.exact and isinstance(model, keras.Model):
            metrics.report_python_state(model, self.reporter)
        else:
            metrics.report_unknown(model, self.reporter)
        result_names = metrics.results_in(model, logs)
        others = metrics.under_other_names(model, logs) if self.loops[-1].runs_eagerly else {}
        if metrics.sum_over_ranks(model, self.collectives, self.context.stop.requested, self.loops[-1].metrics_before):
            self.raise_stopped("validation" if self.loops[-1].kind == "evaluate" else "training")
        result = original(model, logs)
        if result is logs and isinstance(logs, dict) and logs:
            logs, returned = flat(logs), logs
            made, mixed = self._derived.again(model, self.loops[-1].training, logs.keys() - result_names)
            refusals.note_derived(mixed, self.reporter)
            results = flat(model.get_metrics_result()) if others else {}
            made.update({name: results[other] for name, other in others.items()})
            rows = float(self._last_rows.numpy())
            laws = self._laws_of(model, logs)
            mixed_names = {name for name, law in laws.items() if law is Law.MIXED}
            refusals.note_mixed_logs(mixed_names - result_names - made.keys() - mixed, self.reporter)
            # After batches that callbacks heed, logs are those of all ranks already.
            are_global = logs if self.loops[-1].heeds_batches else made
            laws = {name: Law.CONSTANT if name in are_global else law for name, law in laws.items()}
            return nested(
                returned, metrics.average_logs(model, {**logs, **made}, result_names, laws, self.collectives, rows)
            )
        return result
