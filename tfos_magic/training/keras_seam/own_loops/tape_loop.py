"""Training loops that a cell writes itself, and single steps by hand: no ``fit`` knows there which rows are whose.

The gradients that a loop gives to an optimizer are averaged over ranks, as Horovod's ``DistributedGradientTape`` does,
but by the rows behind them: those of the batch last drawn from a sharded dataset. Where no rank has drawn one, every
rank holds all rows and counts alike, so the result is that of one process either way.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tfos_magic.training import refusals
from tfos_magic.training.firststep import maps
from tfos_magic.training.inputs import digests
from tfos_magic.training.keras_seam import jit, seams
from tfos_magic.training.keras_seam.data import empty_batches
from tfos_magic.training.keras_seam.own_loops import saves, whole_reads
from tfos_magic.training.keras_seam.own_loops.batch_numbers import BatchNumbers
from tfos_magic.training.keras_seam.own_loops.iterators import DrawnRows, Iterators
from tfos_magic.training.keras_seam.own_loops.metric_results import MetricResults
from tfos_magic.training.keras_seam.own_loops.replica_variables import ReplicaVariables
from tfos_magic.training.keras_seam.own_loops.tapes import Tapes
from tfos_magic.training.keras_seam.seams import replace, replaced, wrap
from tfos_magic.training.logs.metrics import raw
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session
from tfos_magic.training.step import Step, rows_of
from tfos_magic.training.strategies import sparse_gradients

LATELY = 5.0
"""Seconds for which a loop that has drawn a batch is taken to come to the next."""

SUMMED = "_tfos_summed"
"""An optimizer's attribute: the program has added its gradients up over replicas by itself."""

_ON_BATCH = ("train_on_batch", "test_on_batch")


class OwnLoop:
    """What a run knows of loops outside ``fit``: whether batches are shares, and the rows of the last one.

    The rows are a variable, so that a step which was traced once reads them each time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self.over_shares = self.is_saving = False
        self.over_copies = True
        self.source: Any = None
        self.variables = ReplicaVariables(session.collectives)
        self.iterators, self.drawn_rows = Iterators(), DrawnRows(session.reporter)
        self.numbers = BatchNumbers(session)
        self.metrics = MetricResults(
            session, self.iterators, self.numbers, lambda: self.over_shares, self.variables.count
        )
        self.tapes = Tapes(session, self.step, lambda: self.over_copies)
        self._steps, self._drawn_at = 0, 0.0
        self._batch: tuple[Any, Step] | None = None
        with tf.device("CPU:0"):
            self._rows = tf.Variable(1.0, trainable=False, name="tfos_own_rows")
            self._apart = tf.Variable(0.0, trainable=False, name="tfos_own_apart")
            self.steps_taken = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfos_own_steps")

    @property
    def batch_step(self) -> Step | None:
        """A step over the batch last drawn, while the cell computes losses or gradients over its share of it."""
        active = self._session.exact and (self.on_shares or (self._computes and record.could_possibly_record()))
        return self.step_of_batch() if active else None

    @property
    def without_rows(self) -> tf.Tensor | None:
        """Whether the cell computes by itself on a share that has no rows, a boolean scalar; None outside of shares."""
        return tf.equal(self._rows.read_value(), 0.0) if self._computes else None

    @property
    def _computes(self) -> bool:
        """Whether the cell computes by itself after it drew shares."""
        return self._session.many and self._session.loop is None and self.over_shares and not self.is_saving

    @property
    def on_shares(self) -> bool:
        """Whether it computes on a share, and all ranks do."""
        lockstep = self._session.strategy.lockstep and not self._session.context.calls.rank
        return lockstep and self._computes and self.iterators.gives_shares

    def step_of_batch(self) -> Step:
        """The step of the batch last drawn, which counts the rows of all ranks once in each graph."""
        if tf.executing_eagerly():  # a function that was called meanwhile may have drawn another batch
            return self.step()
        graph = tf.compat.v1.get_default_graph()
        if self._batch is None or self._batch[0] is not graph:
            self._batch = graph, self.step()
        return self._batch[1]

    @property
    def goes_on(self) -> bool:
        """Whether a loop over shares has drawn a batch lately, and comes to the next, where all ranks stop."""
        return self._session.draws_shares and time.monotonic() - self._drawn_at < LATELY

    def drawn(self, batch: Any, known: bool = True) -> None:
        """Count the rows of a batch, which may be none, eagerly or in a graph.

        Eagerly it heeds a request to stop as well, of which all ranks know by now.
        """
        if self.is_saving:  # functions are called then, on no batch
            return
        session, self._drawn_at = self._session, time.monotonic()
        rows = rows_of(batch)
        self._rows.assign(1.0 if rows is None else tf.cast(rows, tf.float32))
        self.over_shares = self.over_shares or known
        self.tapes.begin()
        self._batch = None
        self.over_copies = False  # so far as is known: an iterator that is an argument of a graph hides what it gives
        session.draws_shares = self.over_shares
        if tf.executing_eagerly():
            self.drawn_rows.note(batch, int(self.steps_taken.numpy()))
            session.heed_stop("a training loop")
            session.votes.cast()
            self._steps += 1
            if session.reporter.due():
                session.reporter.progress("train", epoch=0, epochs=0, step=self._steps, steps=0)

    def apply(self, update: Any, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Take a step with the gradients of all ranks."""
        session = self._session
        if not session.strategy.lockstep:
            refusals.refuse_own_loop("A custom training loop", session.strategy.name)
        self.refuse_mixing()
        self._take_over(optimizer, variables)
        self._session.remember(variables)
        if tf.executing_eagerly():
            session.votes.cast()
        step = self.step()
        step.united = self.tapes.united
        if self.over_copies:
            step.digest = digests.of_gradients(gradients)
        session.strategy.apply(step, gradients, variables, update)
        self.steps_taken.assign_add(1)
        if self.over_copies:
            self._apart.assign(tf.maximum(self._apart, session.votes.apart()))
        if self.over_shares:
            session.count(self._rows)
            refusals.note_own_loop(session.reporter)
            refusals.note_draws(session.streams.taken(), session.reporter)
        if tf.executing_eagerly():
            session.heed_stop("a training loop")
            self.heed_apart()

    @contextmanager
    def by_replica(self) -> Iterator[None]:
        """In the block the program computes on this rank's rows alone, as a replica of ``tf.distribute`` does.

        After it, what it has assigned is made alike on all ranks, but for variables of metrics and optimizers.
        """
        self.over_shares, self.over_copies = True, False
        apart, in_graph = self._session.computing_apart(True), replaced(self.iterators, "in_graph", True)
        with self.variables.within_step(), apart, in_graph:
            yield
        self.variables.settle()

    def assign_by_replica(self, method: str, assign: Callable[..., Any], variable: tf.Variable, value: Any) -> Any:
        """Let a replica set ``variable`` by ``value``; ``assign`` is what its ``method`` does."""
        if self._session.applying:
            return assign(variable, value)
        return self.variables.assign(method, assign, variable, value)

    def apply_by_replica(self, update: Any, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Take a step in :meth:`by_replica` with the sums of the gradients, which are clipped and accumulated then."""
        with self._session.computing_apart(False):
            self._take_over(optimizer, variables)
        self._session.remember(variables)
        update(gradients if getattr(optimizer, SUMMED, False) else self._summed(gradients), variables)
        self.steps_taken.assign_add(1)
        self._session.count(self._rows)

    def _summed(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients added up over ranks. None stays None, and sparse ones stay sparse."""
        collectives, sums, one = self._session.collectives, list(gradients), tf.constant(1.0)
        dense = [i for i, g in enumerate(gradients) if g is not None and not isinstance(g, tf.IndexedSlices)]
        for i, total in zip(dense, collectives.all_reduce([gradients[i] for i in dense]), strict=True):
            sums[i] = total
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                sums[i] = sparse_gradients.combine(collectives, gradient, one, one, tf.constant(False))
        return sums

    def refuse_mixing(self) -> None:
        """Before a step by hand: refuse maps, on the way to the fed rows under way, that look at more than a row."""
        source, self.source = self.source, None
        if source is not None and self._session.exact:
            with tf.init_scope():
                if maps.paddings(source):
                    maps.note_padding("a model", self._session.reporter)

    def heed_apart(self) -> None:
        """Refuse steps in which ranks had gradients apart from each other, though every rank is to have all rows."""
        size = self._session.collectives.size
        if not self._session.context.calls.rank and self._apart.numpy() > digests.NEAR * size**2:
            refusals.refuse_other_values()

    def step(self) -> Step:
        """A step over the batch last drawn."""
        step = self._session.new_step(self._rows.read_value())
        return step.on_copies() if self.over_copies else step

    def _take_over(self, optimizer: Any, variables: list[Any]) -> None:
        """Give every rank rank 0's values the first time that ``optimizer`` meets ``variables``."""
        known = self._known.setdefault(optimizer, set())
        if known.issuperset(map(id, variables)):
            return
        known.update(map(id, variables))
        self._session.checkpointer.note_own_loop()
        with tf.init_scope():
            # What a function makes of a tensor in its first call has no value until that is over; all ranks draw alike.
            made = [v for v in variables if bool(raw(v).is_initialized())]
            self._session.replicas.refuse_other_values(made)
            self._session.replicas.broadcast([*made, *(optimizer.variables if optimizer.built else [])])


def install(stack: ExitStack, session: Session, own_loop: OwnLoop) -> None:
    """Watch batches being drawn, and steps by hand, until ``stack`` closes."""
    stack.push(lambda error, *_: own_loop.heed_apart() if error is None else None)  # of steps in graphs
    replace(stack, session.context.stop, "heeded_by", lambda: bool(session.loops) or own_loop.goes_on)
    whole_reads.install(stack, session.looks)
    own_loop.tapes.install(stack)
    own_loop.metrics.install(stack)
    saves.install(stack, session, own_loop)
    empty_batches.install(stack, lambda: own_loop.without_rows is not None)
    wrap(stack, seams.found(seams.VARIABLE), "_initialize_with_initializer", _initialize_at_once)
    trainer = seams.found(seams.TRAINER)
    signatures = {name: inspect.signature(getattr(trainer, name)) for name in _ON_BATCH}

    def call(kind: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signatures[kind].bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def on_batch(kind: str, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.strategy.lockstep:
            refusals.refuse_own_loop(f"{kind}()", session.strategy.name)
        session.looks.forget()
        own_loop.refuse_mixing()
        with session.entered(kind, model) as loop:
            session.copied.assign(not own_loop.over_shares)
            try:
                _prepare(session, loop, own_loop.over_shares, call(kind, model, *args, **kwargs))
                return original(model, *args, **kwargs)
            finally:
                session.copied.assign(False)

    for name in _ON_BATCH:
        wrap(
            stack,
            trainer,
            name,
            lambda original, *a, _kind=name, **k: on_batch(_kind, original, *a, **k),
        )


def _initialize_at_once(original: Any, variable: Any, initializer: Any) -> None:
    """Give a variable that a function makes in its first call a value there and then, for rank 0's to be taken over."""
    with tf.init_scope():
        original(variable, initializer)


def _prepare(session: Session, loop: Loop, over_shares: bool, arguments: dict[str, Any]) -> None:
    """Before a step by hand: equal weights the first time, and logs of all rows where ranks have shares."""
    model = loop.model
    jit.take_over(session, loop)
    if over_shares:
        loop.finish = model._get_metrics_result_or_logs
    else:
        loop.finish = lambda logs: logs
    if not session.replicas.knows(model):
        session.collectives.align()
        batch = tuple(arguments[name] for name in ("x", "y", "sample_weight") if arguments[name] is not None)
        session.replicas.build(model, tf.nest.map_structure(_spec, batch))
        session.replicas.take_over(model, loop)


def _spec(leaf: Any) -> tf.TensorSpec:
    tensor = tf.convert_to_tensor(leaf)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
