"""The check before the first step of each model in a cell: what it finds scales sums, and refuses what mixes rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.errors import ClusterError, TrainingError
from tfos_magic.training.agreement import REMEDY
from tfos_magic.training.firststep import batches, step_runs
from tfos_magic.training.firststep.alike import different
from tfos_magic.training.firststep.batches import Tried
from tfos_magic.training.firststep.kept import drawing_apart
from tfos_magic.training.firststep.laws import Law, agreed
from tfos_magic.training.firststep.maps import Padding, paddings, refuse_padding, widened
from tfos_magic.training.firststep.python_objects import has_own_code
from tfos_magic.training.firststep.schedule import Schedule
from tfos_magic.training.firststep.step_runs import Laws, mixed
from tfos_magic.training.firststep.step_trial import STRETCHES, StepTrial, TrialStep, layers_in_float64
from tfos_magic.training.firststep.words import KINDS, Words, of_assumed, of_metric, of_untried
from tfos_magic.training.gathered.losses import GatheredLosses
from tfos_magic.training.inputs.digests import without_digest
from tfos_magic.training.loop import Loop
from tfos_magic.training.loop_state import TrainingState
from tfos_magic.training.step import Step, checked_rows, rows_in, scaled_gradient, with_stand_in

TOLERANCE = 5e-6
"""What rounding in float32 may make; where it makes more, a trial in float64 tells."""
CERTAIN = 2e-2
"""A difference that no rounding makes, for models that cannot compute in float64; near their minimum either."""


class FirstStep:
    """What is known, in one run, of the steps of each model. Every rank calls every method at the same time."""

    def __init__(self, session: TrainingState) -> None:
        self._session = session
        self.schedule = Schedule(self._any)
        self._laws: Laws = {}
        self.gathered = GatheredLosses()
        self._owners: dict[int, Any] = {}
        self._early: weakref.WeakSet[Any] = weakref.WeakSet()
        self._padded: weakref.WeakKeyDictionary[Any, tuple[Padding, ...]] = weakref.WeakKeyDictionary()
        self._why = "on another worker"
        self.statistics: weakref.WeakKeyDictionary[Any, list[tuple[Any, Law]]] = weakref.WeakKeyDictionary()

    def scaled(self, kind: str, owner: Any, value: tf.Tensor, step: Step) -> tf.Tensor:
        """Give what a step computed of this rank's rows such that its mean by rows is the global batch's.

        ``owner`` is whose number it is: a loss, a layer or a metric; each may have several in a step.
        """
        self._owners[id(owner)] = owner
        name = (kind, id(owner), step.count((kind, id(owner))))
        if isinstance(step, TrialStep):
            step.values[name] = tf.reduce_sum(value)
        return tf.math.multiply_no_nan(value, tf.cast(step.scale(), value.dtype)) if self._is_sum(name) else value

    def unites_early(self, model: Any) -> bool:
        """Whether a step changes its gradients, as by clipping, in a way that needs those of the global batch."""
        return model in self._early

    def gradients(self, gradients: Sequence[Any], variables: Sequence[Any], step: Step) -> list[Any]:
        """Give gradients of this rank's rows such that their mean by rows is the gradient of the global batch."""
        names = [("gradient", id(variable)) for variable in variables]
        if not any(map(self._is_sum, names)):
            return list(gradients)
        return [scaled_gradient(g, step) if self._is_sum(n) else g for g, n in zip(gradients, names, strict=True)]

    def _is_sum(self, name: Any) -> bool:
        return self._laws.get(name) is Law.SUM

    def law_of_log(self, model: Any, kind: str, name: str) -> Law:
        """How what a step for ``kind`` returns follows from its rows; ``UNKNOWN`` for what each row has by itself."""
        by_row = self._laws.get(("rows", kind, name, id(model)), Law.UNKNOWN)
        return self._laws.get(("log", kind, name, id(model)), Law.MIXED if by_row is Law.MIXED else Law.UNKNOWN)

    def heed_maps(self, model: Any, dataset: Any) -> None:
        """Let the next :meth:`check` try the padding of ``dataset`` too; raises as :func:`paddings` does."""
        self._padded[model] = paddings(dataset)

    def check(self, model: Any, iterator: Any, loop: Loop) -> Any:
        """Try the step of ``loop`` on the rows that come next, where it is to be; gives the iterator to go on with.

        Raises :class:`TrainingError` for a step that mixes rows.
        """
        kind = "fit" if loop.training else "evaluate"
        padded = self._padded.pop(model, ())
        is_first = self.schedule.is_first(model, kind)
        is_again = not is_first and self.schedule.is_again(model, loop)
        if not (is_first or is_again or padded):
            return iterator
        self.schedule.note(model, kind)
        taken, again = batches.peek(iterator, int(model.steps_per_execution))
        if taken:
            batch = tf.nest.map_structure(batches.as_tensor, without_digest(taken[0])[0])
            checked_rows(batch)
            whole = with_stand_in(batch, rows_in(batch))
            if is_first or is_again:
                self._check(model, kind, whole, loop if is_again else None)
            if padded:
                self._check_padding(model, kind, batches.tried(whole), padded)
        return again

    @contextmanager
    def _trial(self, model: Any, kind: str) -> Iterator[StepTrial]:
        with ExitStack() as stack:
            eager = tf.config.functions_run_eagerly()
            stack.callback(tf.config.run_functions_eagerly, eager)
            tf.config.run_functions_eagerly(True)
            stack.enter_context(drawing_apart())
            trial = StepTrial(self._session, model, kind, stack)
            stack.enter_context(trial.state.perturbed(1))
            yield trial

    def _check(self, model: Any, kind: str, batch: Any, again: Loop | None) -> None:
        before = dict(self._laws)
        with self._trial(model, kind) as trial:
            for variable in model.variables:
                self._laws.pop(("gradient", id(variable)), None)
            self.gathered.begin()
            total = int(self._session.collectives.gather([int(rows_in(batch))]).sum()) if has_own_code(model) else 0
            for few in batches.FEWEST, batches.MANY:  # a step may need more than a few, as the ten with largest losses
                rows = batches.tried(batch, few, total)
                if laws := self._laws_on(trial, rows):
                    break
            is_traced = again is not None and not again.runs_eagerly
            is_clipped = mixed(laws) and self._any(trial.changes_gradients)
            early = self._laws_of_changed(trial, rows, laws) if is_clipped else {}
            if not trial.united_early:
                laws = laws if is_traced else self._laws_with_gathered(trial, rows, laws)
                if not laws and again is None:
                    self.gathered.forget()
                laws = self._with_statistics(trial, rows, self._filled_in(trial, rows, laws))
            if laws and self._any(trial.changes_gradients):
                laws = early if trial.united_early else self._laws_of_changed(trial, rows, laws)
                self._early.discard(model)
                if trial.united_early:
                    self._early.add(model)
            self.schedule.note_found(model, trial.state.settings(), self._may_change(trial, laws))
            if again is not None and laws and (is_traced or again.step):
                laws = step_runs.held_to(before, laws)
            self._settle(model, trial, laws, again)
            if laws and (self._may_change(trial, laws) or any(layer._metrics for layer in model.layers)):
                step_runs.refuse_metrics(trial, rows, self._any)
            if (
                laws
                and self._any(self._session.looks.looked)
                and (names := different(self._session.collectives, trial, rows.whole[0]))
            ):
                self._refuse_apart(model, names)

    def _laws_with_gathered(self, trial: StepTrial, rows: Tried, laws: Laws) -> Laws:
        """The laws where losses by which rows mix are gathered, or none is: one may read more than it is given."""
        for change in (self.gathered.gather_all, self.gathered.gather_none):
            if mixed(laws) and self._any(change()):
                laws = self._laws_on(trial, rows)
        return laws

    def _may_change(self, trial: StepTrial, laws: Laws) -> bool:
        """Whether other rows may show a step to be another one: one that is made of losses for each row does not."""
        own_loss = type(trial.model).compute_loss is not keras.Model.compute_loss
        return trial.own_step or own_loss or bool(self.gathered.assumed) or any(name[0] == "added" for name in laws)

    def _check_padding(self, model: Any, kind: str, rows: Tried, padded: tuple[Padding, ...]) -> None:
        """Refuse a step that computes something else where rows have more padding."""
        laws: Laws = {}
        if all(padding.value is not None for padding in padded):
            with self._trial(model, kind) as trial:
                trial.own_step = False  # its later steps were tried with the padding that there is
                wider = widened(rows.whole[0], padded), rows.whole[1]
                both = Tried(rows.whole, (wider, wider))
                exact = self._tried(trial, batches.in_float64(both), step_runs.IN_FLOAT64)
                laws = exact or self._tried(trial, both, TOLERANCE)
        refuse_padding(model, laws, self._session.reporter)

    def _laws_on(self, trial: StepTrial, rows: Tried) -> Laws:
        """The laws that ``rows`` show; where one is mixed, which rounding may have made, those found in float64."""
        laws = self._tried(trial, rows, TOLERANCE)
        if not mixed(laws):
            return laws
        return self._tried(trial, batches.in_float64(rows), step_runs.IN_FLOAT64) or self._tried(trial, rows, CERTAIN)

    def _filled_in(self, trial: StepTrial, rows: Tried, laws: Laws) -> Laws:
        """The laws, with those of numbers that were zero as other rows show them, or as other gradients have them."""
        unknown = step_runs.unknown_in(laws, of_all_kinds=bool(laws) and self._any(batches.has_zeros_alone(rows)))
        if not unknown:
            return laws
        others = batches.filled(rows)
        shown = self._any(others is not rows and step_runs.shows(trial, others, unknown, TOLERANCE))
        other_laws = self._laws_on(trial, others) if shown else {}
        laws = step_runs.completed(laws, other_laws)
        known = {law for name, law in laws.items() if name[0] == "gradient" and law is not Law.UNKNOWN}
        common = known.pop() if len(known) == 1 else Law.UNKNOWN
        return {n: common if law is Law.UNKNOWN and n[0] == "gradient" else law for n, law in laws.items()}

    def _with_statistics(self, trial: StepTrial, rows: Tried, laws: Laws) -> Laws:
        """The laws, as larger rows show them for statistics that do not change, which may go by a threshold."""
        if not self._any(bool(still := trial.collected(step_runs.still(laws)))):
            return laws
        before = dict(self._laws)
        large = self._laws_on(trial, batches.contrasted(rows, *batches.LARGE))
        self._laws = before
        return step_runs.completed(laws, large, still)

    def _laws_of_changed(self, trial: StepTrial, rows: Tried, laws: Laws) -> Laws:
        """The laws of a step that changes its gradients before the optimizer has them, as by clipping.

        It gets those of all ranks, if it does with them the same on every rank. Else what it does must be linear.
        """
        trial.united_early = True
        early = self._laws_on(trial, rows)
        trial.united_early = bool(early) and not mixed(early)
        if not trial.united_early and not mixed(laws) and not self._any(not trial.is_linear(*rows.whole)):
            return laws
        return early

    def _any(self, mine: bool) -> bool:
        """Whether something is so on any rank."""
        return bool(self._session.collectives.gather([int(mine)]).any())

    def _tried(self, trial: StepTrial, rows: Tried, tolerance: float) -> Laws:
        """The laws that all ranks agree on, with those that scale applied; empty where a rank cannot try the step."""
        laws = self._common(self._compared(trial, rows, tolerance))
        if self._any(self._adopts()):
            laws = self._common(self._compared(trial, rows, tolerance))
        sums = {name: law for name, law in laws.items() if law is Law.SUM and name[0] in ("loss", "added", "metric")}
        if not sums:
            return laws
        # With these scaled, gradients are means.
        self._laws.update(sums)
        return {**self._common(self._compared(trial, rows, tolerance)), **sums}

    def _adopts(self) -> bool:
        """Whether this rank is to gather other losses than it found, for all are to gather the same."""
        collectives, found = self._session.collectives, self.gathered.found()
        counts = collectives.gather([len(found)])[:, 0]
        return bool(found) and not (counts != counts[0]).any() and self.gathered.adopt(collectives.gather(found))

    def _compared(self, trial: StepTrial, rows: Tried, tolerance: float) -> Laws:
        try:
            with layers_in_float64(trial.model) if tolerance == step_runs.IN_FLOAT64 else nullcontext():
                laws_of_runs = [step_runs.run(trial, each, tolerance) for each in (rows, rows.wide) if each is not None]
                for ahead in trial.state.ahead(trial.own_step):
                    laws_of_runs += step_runs.run_later(trial, rows, tolerance, ahead)
                if trial.united_early:  # what limits gradients may treat all of some length alike
                    laws_of_runs += [step_runs.run(trial, rows, tolerance, stretch) for stretch in STRETCHES]
                names = dict.fromkeys(name for laws in laws_of_runs for name in laws)
                return {name: agreed([laws.get(name, Law.UNKNOWN) for laws in laws_of_runs]) for name in names}
        except (TrainingError, ClusterError):
            raise
        except Exception as error:  # whatever a user's step may raise: the step itself raises it again, if it is real
            self._why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            return {}

    def _common(self, local_laws: Laws) -> Laws:
        """What all ranks found, for each number; empty where one could not try, or found other numbers."""
        collectives = self._session.collectives
        counts = collectives.gather([len(local_laws)])[:, 0]
        if not local_laws or (counts != counts[0]).any():
            return {}
        table = collectives.gather([int(law) for law in local_laws.values()])
        return {name: agreed([Law(law) for law in column]) for name, column in zip(local_laws, table.T, strict=True)}

    def _refuse_apart(self, model: Any, names: Sequence[Any]) -> None:
        if self._session.context.calls.rank:
            return  # a cell that asks which worker it runs on may want that
        what = next((text for name in names if (text := Words(model, self._owners).of(name))), "What the step computes")
        raise TrainingError(f"{what} differs between workers for the same rows. {REMEDY}")

    def _settle(self, model: Any, trial: StepTrial, laws: Laws, again: Loop | None) -> None:
        notice = self._session.reporter.notice
        if not laws:
            if again is None:
                self._session.reporter.notice_late(of_untried(model, self._why))
            return
        words = Words(model, self._owners)
        for kind in KINDS:
            if mixed_names := [name for name, law in laws.items() if name[0] == kind and law is Law.MIXED]:
                raise TrainingError(words.refusal(mixed_names[0], again))
        zeros = [words.of_zero(n) for n, law in laws.items() if n[0] in ("added", "loss") and law is Law.UNKNOWN]
        for remark in [*zeros, *trial.remarks(), *map(of_assumed, sorted(self.gathered.assumed))]:
            notice(remark)
        gradients = [law for name, law in laws.items() if name[0] == "gradient"]
        if gradients and all(law is Law.UNKNOWN for law in gradients):
            notice(f"All gradients of {model.name!r} were zero or not finite at first. They are assumed to be means.")
        for metric in dict.fromkeys(m for i, m in trial.metrics.items() if laws.get(("state", i)) not in _ADDS):
            notice(of_metric(metric))
        self._laws.update(laws)
        kept = {id(variable): variable for variable in trial.state.variables}
        self.statistics[model] = [
            (kept[name[1]], law) for name, law in laws.items() if name[0] == "statistic" and law in (Law.MEAN, Law.SUM)
        ]


_ADDS = (Law.SUM, Law.UNKNOWN, None)
