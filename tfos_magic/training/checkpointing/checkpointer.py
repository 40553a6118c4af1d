"""Taking checkpoints while a cell trains, and knowing what an earlier attempt left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfos_magic.checkpoints.checkpoint import Checkpoint, Position
from tfos_magic.training.checkpointing import python_values, snapshot
from tfos_magic.training.checkpointing.resumable_iterator import ResumableIterator
from tfos_magic.training.checkpointing.resume import Recorded, by_class, reopen_epoch
from tfos_magic.training.checkpointing.sender import Sender
from tfos_magic.training.context import RunContext
from tfos_magic.training.logs import metrics
from tfos_magic.training.loop import Fit, Loop, Opening
from tfos_magic.training.loop_state import TrainingState

SHARE = 50


class Checkpointer:
    """The checkpoints of a run on one rank. Every rank calls every method at the same time; rank 0 takes and sends.

    Checkpoints that nobody asked for may cost at most one part in ``SHARE`` of the time.
    """

    def __init__(self, context: RunContext, session: TrainingState, build: Callable[[Any, Any], None]) -> None:
        self._context, self._session, self._build = context, session, build
        self._plan = context.checkpoints
        self._collectives = context.collectives
        self._sender = Sender(context.run_id, context.emit, session.reporter)
        self._fits = 0
        self._last = time.monotonic()
        self._recorded = Recorded(context.collectives, context.resume) if self._plan.enabled else None

    @property
    def watches_data(self) -> bool:
        """Whether iterators over epochs must be ones that can be wound forward."""
        return self._plan.enabled

    def enter_fit(self, loop: Loop, arguments: dict[str, Any], callbacks: list[Any]) -> list[Any]:
        """Count a call of ``fit`` with its bound ``arguments``; gives the callbacks it shall have."""
        if not self._plan.enabled or len(self._session.loops) > 1:
            return callbacks
        given_history = next((c for c in callbacks if isinstance(c, keras.callbacks.History)), None)
        history = given_history or keras.callbacks.History()
        others = [c for c in callbacks if c is not history]
        loop.fit = fit = Fit(
            index=self._fits,
            initial_epoch=arguments["initial_epoch"],
            epochs=arguments["epochs"],
            validation_freq=arguments["validation_freq"],
            callbacks=by_class(others),
            history=history,
        )
        self._fits += 1
        if self._recorded:
            self._recorded.claim(fit)
        if fit.over:
            arguments["verbose"] = 0
            return [history]
        if fit.position is not None:
            for logger in (c for c in others if isinstance(c, keras.callbacks.CSVLogger)):
                logger.append = True  # else it would empty the file that holds the epochs before
        return [*others, history, *([StepCounter(self, loop)] if self._plan.every else [])]

    def watch(self, data: ResumableIterator) -> None:
        """An iterator over epochs was made: the first of a ``fit`` is over what it trains on, the second validates."""
        loop = self._session.loop
        if loop is None or loop.fit is None:
            return
        if loop.data is None:
            loop.data = data
        elif loop.fit.position is not None:
            data.skip_to(loop.fit.validations_before(), 0)

    def begin(self, loop: Loop) -> None:
        """``fit`` is about to train; its callbacks have begun."""
        if (fit := loop.fit) is not None:
            fit.before = {name: python_values.scalars(callback) for name, callback in fit.callbacks.items()}
            fit.began = time.monotonic()

    def open(self, loop: Loop) -> None:
        """``fit`` has a model that is built, where another rank shares it; its variables are not broadcast yet."""
        fit = loop.fit
        if fit is None:
            return
        # Else the first step builds it, as in one process: nothing has to be known before.
        if self._session.many or self._plan.asked or self._plan.every or fit.position is not None:
            if not self._session.many:
                self._build(loop.model, loop.data.element_spec)
            fit.recorded = self._is_built(loop)
        if fit.recorded and fit.position is not None and self._recorded is not None:
            self._recorded.restore(loop, fit)
            for name, callback in fit.callbacks.items():
                if attributes := python_values.left_out(callback):
                    self._session.reporter.notice(
                        f"{name.partition('.')[0]} goes on with {', '.join(attributes)} as the cell makes them: "
                        "checkpoints hold numbers, strings, arrays, variables, and lists, dicts, sets and deques of "
                        "them. Keep what it has to know in such attributes."
                    )

    def _is_recorded(self, loop: Loop, fit: Fit) -> bool:
        """Whether checkpoints are taken of ``fit``, which has taken a step."""
        if fit.recorded is None:
            fit.recorded = self._is_built(loop)
        return fit.recorded

    def epoch_begins(self, loop: Loop) -> None:
        """Keras has just set the metrics to zero."""
        fit = loop.fit
        if fit is None or not fit.recorded:
            return
        if not self._in_step:
            fit.steps = 0
        if fit.metrics is not None and fit.position is not None:
            loop.step = fit.position.step
            reopen_epoch(loop.model, fit)
        if self._plan.every and loop.data.runs_python:
            arrays: dict[str, npt.NDArray[Any]] = {}
            fit.opening = Opening(snapshot.python_states(arrays), arrays)

    def step_ends(self, loop: Loop) -> None:
        """Take a checkpoint in the middle of an epoch, every so many steps."""
        fit = loop.fit
        if fit is None or not fit.recorded:
            return
        fit.steps += loop.model.steps_per_execution
        total = loop.data.num_batches
        # After the last step the checkpoint of the epoch's end is due, which has validation in it.
        if fit.steps >= self._plan.every and (total is None or loop.step < total):
            self._take(loop, fit, loop.epoch, loop.step)

    def epoch_ends(self, loop: Loop) -> None:
        """Take a checkpoint after an epoch, unless the end of ``fit`` will bring one.

        Where steps count, that is after so many, and after each epoch in whose middle one was taken: a run that goes on
        with other rows has to go back to the beginning of an epoch.
        """
        fit = loop.fit
        if fit is None or loop.epoch + 1 >= fit.epochs or loop.model.stop_training:
            return
        if not self._is_recorded(loop, fit):
            return
        steps = 0 if fit.steps >= self._plan.every else fit.steps
        enough = not steps or fit.inside or not self._in_step
        leaves = self._leaves()
        if leaves or (enough if self._plan.every else self._is_due(self._last)):
            self._take(loop, fit, loop.epoch + 1, 0)
            fit.steps = steps
        if leaves:
            self._session.raise_stopped(f"epoch {loop.epoch + 1}")

    def leave(self, loop: Loop) -> None:
        """All ranks go after this step, for the run goes on elsewhere, unless it could only from an epoch's end."""
        fit = loop.fit
        if fit is None or (loop.data.runs_python and not self._plan.every) or loop.data.follows_ranks:
            return
        if not self._is_recorded(loop, fit):
            return
        self._take(loop, fit, loop.epoch, loop.step)
        self._session.raise_stopped(f"epoch {loop.epoch + 1}")

    def _leaves(self) -> bool:
        """Whether the run goes on elsewhere after this epoch, as a rank has been told."""
        if self._context.strategy == "async":
            return False
        return bool(self._collectives.gather([int(bool(self._context.stop.leaving))]).any())

    def end(self, loop: Loop) -> None:
        """``fit`` has ended well, and so have its callbacks."""
        fit = loop.fit
        if fit is None or loop.opening is not None:  # it took no step
            return
        if fit.position is not None:
            loop.model._initial_epoch = None
        if not fit.over and self._is_recorded(loop, fit) and self._is_due(fit.began):
            epoch = fit.history.epoch[-1] + 1 if fit.history.epoch else fit.initial_epoch
            self._take(loop, fit, epoch, 0, complete=True)

    def close(self) -> None:
        """Wait until what was taken has been sent."""
        if self._fits == 0:
            self.note_own_loop()
        self._sender.join()

    def note_own_loop(self) -> None:
        """Say, where checkpoints were asked for, that there are none of a training loop of the cell's own."""
        if self._plan.asked:
            self._session.reporter.notice(
                "Checkpoints cover only fit(): a custom training loop starts over when the run is resumed."
            )

    @property
    def _in_step(self) -> bool:
        """Whether all ranks have counted the same steps; elsewhere one may have come when an epoch began."""
        return self._session.strategy.lockstep or not self._session.many

    def _is_built(self, loop: Loop) -> bool:
        """Whether the model and its optimizer have all their variables."""
        if not loop.broadcast_late and all(optimizer.built for optimizer in snapshot.optimizers(loop.model)):
            self._sender.expect(sum(int(np.prod(v.shape)) for v in snapshot.variables(loop.model)) * 4)
            return True
        if self._plan.asked:
            self._session.reporter.notice(
                f"This fit() of model {loop.model.name!r} takes no checkpoints, because the model, or an optimizer of "
                "its train_step(), is not built before the first step. Give the model an Input layer, or call the "
                "optimizer's build(variables) before fit()."
            )
        return False

    def _is_due(self, since: float) -> bool:
        """Whether a checkpoint costs little enough now; rank 0 decides for all."""
        if self._plan.asked:
            return True
        due = time.monotonic() - since >= SHARE * self._sender.seconds
        return bool(self._collectives.gather([int(due)])[0, 0])

    def _take(self, loop: Loop, fit: Fit, epoch: int, step: int, *, complete: bool = False) -> None:
        started = time.monotonic()
        fit.steps, fit.inside = 0, step > 0
        self._session.report("checkpoint", loop)
        if self._session.many:
            self._session.strategy.settle(loop.model)
        sums = metrics.summed(loop.model, self._collectives, loop.metrics_before) if step else []
        if self._collectives.rank == 0:
            position = Position(fit.index, epoch, step, complete, self._context.seed)
            self._sender.send(_checkpoint(loop, fit, position, sums, self._context), started)
        self._session.report("train", loop)
        self._last = time.monotonic()


class StepCounter(keras.callbacks.Callback):
    """Tells the checkpointer of each step, after the cell's callbacks have seen it; present only where steps count."""

    def __init__(self, checkpointer: Checkpointer, loop: Loop) -> None:
        super().__init__()
        self._checkpointer, self._loop = checkpointer, loop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._checkpointer.step_ends(self._loop)


def _checkpoint(loop: Loop, fit: Fit, position: Position, sums: list[Any], context: RunContext) -> Checkpoint:
    model = loop.model
    variables = snapshot.variables(model)
    arrays: dict[str, npt.NDArray[Any]] = {f"v{i}": snapshot.read(variable) for i, variable in enumerate(variables)}
    arrays.update({f"m{i}": np.array(value) for i, value in enumerate(sums)})
    details: dict[str, Any] = {
        "layout": snapshot.layout(variables),
        "broadcast": snapshot.broadcast_count(model),
        "stopped": bool(model.stop_training),
        "epochs": list(fit.history.epoch),
        "history": _history(fit.history, arrays),
        "callbacks": {
            name: python_values.changed(callback, fit.before[name], name, arrays)
            for name, callback in fit.callbacks.items()
        },
        "generators": snapshot.generator_states(arrays),
        "feeds": {name: list(mark) for name, mark in context.feeds.items()},
        "setting": dict(context.checkpoints.setting),
        "batches": loop.data.batches,
        "follows_ranks": loop.data.follows_ranks,
        "ranks": context.collectives.size,
        "random": dict(context.random),
    }
    if position.step and fit.opening is not None:
        details["generators"].update(fit.opening.states)
        arrays.update(fit.opening.arrays)
    return Checkpoint(position, details, arrays)


def _history(history: keras.callbacks.History, arrays: python_values.Arrays) -> Any:
    """The history, without metrics whose values are neither numbers nor arrays."""
    fit_values = {}
    for name, values in history.history.items():
        try:
            fit_values[name] = python_values.freeze(list(values), "history", arrays)
        except python_values.Unfit:
            continue
    return {"dict": fit_values}
