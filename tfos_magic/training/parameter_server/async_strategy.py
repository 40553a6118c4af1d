"""Strategy ``async``: every rank's step is a step of the optimizer, which runs on parameter servers.

No rank waits for another, but for one that is more than ``max_staleness`` steps behind. A rank that is lost is left
behind, and one that comes later takes part from the next epoch on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import tensorflow as tf

from tfos_magic.errors import RunStopped, TrainingError
from tfos_magic.training.context import RunContext
from tfos_magic.training.parameter_server.target import Target
from tfos_magic.training.parameter_server.wire import ServedCollectives, ServerWire
from tfos_magic.training.step import Step
from tfos_magic.training.strategies.strategy import Update

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NEVER = 1 << 30


@contextmanager
def served(context: RunContext) -> Iterator[RunContext]:
    """Enter a run on the parameter servers of ``context``; gives a context whose collectives go through them.

    Raises :class:`TrainingError` where there are none.
    """
    group = context.servers
    if group is None:
        raise TrainingError(
            "strategy async needs parameter servers, but this cluster has none: add --ps 1 (TFCluster(servers=1)), "
            "which takes one more Spark slot."
        )
    group.lost = ""
    opening = {
        "kind": "open",
        "run": context.run_id,
        "size": group.size,
        "max_staleness": context.options.max_staleness,
    }
    header, _ = group.ask_first(opening, "the parameter server to open the run")
    wire = ServerWire(group, context.run_id, alone=not header["member"])
    collectives = ServedCollectives(wire, context.collectives.timeout)
    status = "error"
    try:
        yield replace(context, collectives=collectives)
        status = "ok"
    except RunStopped:
        status = "stopped"
        raise
    finally:
        collectives.close()
        group.forget_calls()
        if not (wire.alone or group.failure or group.lost):
            group.ask_first({"kind": "leave", "run": context.run_id, "status": status}, "leave to go")


class AsyncStrategy:
    """Pushes gradients to parameter servers, and trains on with the weights that they answer."""

    name: ClassVar[str] = "async"
    lockstep: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    def __init__(self, context: RunContext) -> None:
        wire = context.collectives.wire
        if not isinstance(wire, ServerWire):
            raise TrainingError("strategy async needs a context that served() gave")
        self._collectives = context.collectives
        self._wire = wire
        self._run_id = context.run_id
        self._targets: dict[tuple[int, ...], Target] = {}
        self._target: Target | None = None
        self._model: Any = None
        with tf.device("CPU:0"):
            self._rows = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="tfos_async_rows")

    def begin(self, model: Any) -> None:
        """Let rank 0 give the model to the servers, and all begin together; or join a fit that is under way."""
        self._wire.begin_fit()
        self._model = model
        self._target = target = self._target_of(model)
        self._rows.assign(0.0)
        if self._wire.alone:
            epoch = self._wire.join()
            model._initial_epoch = _NEVER if epoch is None else epoch
            if epoch is not None:
                target.pull(state=True)
        else:
            if self._collectives.rank == 0:
                target.set_up()
            self._collectives.barrier()
        target.begin()

    def begin_epoch(self, epoch: int) -> None:
        """Meet the others, and whoever joined."""
        self._wire.begin_epoch(epoch)

    def apply(self, step: Step, gradients: Sequence[Any], variables: Sequence[Any], update: Update) -> None:
        """Push, and go on with what comes back. A step counts the votes of all ranks that the first server knows."""
        target = self._target
        if target is None or update.optimizer is not target.optimizer:
            raise TrainingError(
                "strategy async trains the optimizer that the model was compiled with, in fit(). A step with several "
                "optimizers needs --strategy sync or local."
            )
        if not target.holds(variables):
            raise _late(self._model)
        self._rows.assign_add(tf.cast(step.rows, tf.float64))
        meta = tf.concat([tf.cast([step.rows], tf.float64), tf.cast(step.vote, tf.float64), [target.learning_rate]], 0)
        head = target.push(_clipped(gradients, target.optimizer.global_clipnorm), variables, meta)
        step.counted(tf.cast(head[:2], step.vote.dtype))

    def settle(self, model: Any) -> None:
        """When all ranks have pushed what they had: the servers' weights on every rank, the optimizer's state on rank
        0, and moving averages averaged by the rows that each rank saw."""
        if self._target is None or self._wire.alone:
            return
        float_variables = [v for v in model.non_trainable_variables if v.dtype in _FLOATS]
        rows = self._rows.read_value()
        *sums, total = self._collectives.all_reduce(
            [*(tf.cast(v.value, tf.float64) * rows for v in float_variables), rows]
        )
        if float(total) > 0:
            for variable, value in zip(float_variables, sums, strict=True):
                variable.assign(tf.cast(value / total, variable.dtype))
        self._rows.assign(0.0)
        self._target.pull(state=self._collectives.rank == 0)

    def end(self, model: Any) -> None:
        """Bring weights and optimizer home, to every rank."""
        target = self._target
        if target is None:
            return
        if model._initial_epoch == _NEVER:
            model._initial_epoch = None
        if self._wire.alone:
            return
        self.settle(model)
        target.pull(state=True)
        if target.optimizer.use_ema:
            # Keras did so before the averages were brought home.
            target.optimizer.finalize_variable_values(model.trainable_weights)

    def _target_of(self, model: Any) -> Target:
        optimizer = model.optimizer
        if not model.built:
            raise _late(model)
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        key = (id(optimizer), *(id(variable) for variable in optimizer._trainable_variables))
        if key not in self._targets:
            self._targets[key] = Target(optimizer, self._wire.group, self._run_id)
        return self._targets[key]


def _late(model: Any) -> TrainingError:
    return TrainingError(
        f"strategy async sends model {model.name!r} to the parameter servers before its first step, but it cannot be "
        "built by then. Give it an Input layer, or call model.build()."
    )


def _clipped(gradients: Sequence[Any], norm: float | None) -> Sequence[Any]:
    """Clip by the norm of all gradients here, where all are; other ways of clipping are the servers' part."""
    if norm is None:
        return gradients
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    clipped, _ = tf.clip_by_global_norm([gradients[i] for i in present], norm)
    whole = list(gradients)
    for i, gradient in zip(present, clipped, strict=True):
        whole[i] = gradient
    return whole
