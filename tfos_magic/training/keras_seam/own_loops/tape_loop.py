"""Training loops that a cell writes itself, and single steps by hand: no ``fit`` knows there which rows are whose.

The gradients that a loop gives to an optimizer are averaged over ranks, as Horovod's ``DistributedGradientTape`` does,
but by the rows behind them: those of the batch last drawn from a sharded dataset. Where no rank has drawn one, every
rank holds all rows and counts alike, so the result is that of one process either way.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from contextlib import ExitStack
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import core as tf_core
from keras.src.backend.tensorflow import trainer as tf_trainer
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager import record
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfos_magic.training import refusals
from tfos_magic.training.firststep import maps
from tfos_magic.training.inputs import digests, own_reads
from tfos_magic.training.inputs.marks import is_fed, is_sharded
from tfos_magic.training.keras_seam import empty_batches
from tfos_magic.training.keras_seam.own_loops.tapes import Tapes
from tfos_magic.training.keras_seam.seams import replace, replace_item, wrap
from tfos_magic.training.logs.metrics import raw
from tfos_magic.training.loop import Loop
from tfos_magic.training.session import Session
from tfos_magic.training.step import Step, rows_of

_REMEMBERED = 8
_ON_BATCH = ("train_on_batch", "test_on_batch")


class OwnLoop:
    """What a run knows of loops outside ``fit``: whether batches are shares, and the rows of the last one.

    The rows are a variable, so that a step which was traced once reads them each time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        self.over_shares = False
        self.over_copies = True
        self.source: Any = None
        self.tapes = Tapes(session, self.step, lambda: self.over_copies)
        self._steps = 0
        with tf.device("CPU:0"):
            self._rows = tf.Variable(1.0, trainable=False, name="tfos_own_rows")
            self._apart = tf.Variable(0.0, trainable=False, name="tfos_own_apart")

    @property
    def batch_step(self) -> Step | None:
        """A step over the batch last drawn, while the cell computes gradients over its share of it."""
        session = self._session
        active = session.exact and session.loop is None and self.over_shares and record.could_possibly_record()
        return self.step() if active else None

    @property
    def without_rows(self) -> tf.Tensor | None:
        """Whether the cell computes by itself on a share that has no rows, a boolean scalar; None outside of shares."""
        active = self._session.many and self._session.loop is None and self.over_shares
        return tf.equal(self._rows.read_value(), 0.0) if active else None

    def drawn(self, batch: Any, known: bool = True) -> None:
        """Count the rows of a batch, which may be none, eagerly or in a graph.

        Eagerly it heeds a request to stop as well, of which all ranks know by now.
        """
        session = self._session
        rows = rows_of(batch)
        self._rows.assign(1.0 if rows is None else tf.cast(rows, tf.float32))
        self.over_shares = self.over_shares or known
        self.tapes.begin()
        self.over_copies = False  # so far as is known: an iterator that is an argument of a graph hides what it gives
        session.draws_shares = self.over_shares
        if tf.executing_eagerly():
            session.heed_stop("a training loop")
            session.votes.cast()
            self._steps += 1
            if session.reporter.due():
                session.reporter.progress("train", epoch=0, epochs=0, step=self._steps, steps=0)

    def apply(self, update: Any, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Take a step with the gradients of all ranks."""
        session = self._session
        if not session.strategy.lockstep:
            refusals.refuse_own_loop("A training loop of your own", session.strategy.name)
        self.refuse_mixing()
        self._take_over(optimizer, variables)
        self._remember(optimizer, variables)
        if tf.executing_eagerly():
            session.votes.cast()
        step = self.step()
        step.united = self.tapes.united
        if self.over_copies:
            step.digest = digests.of_gradients(gradients)
        session.strategy.apply(step, gradients, variables, update)
        if self.over_copies:
            self._apart.assign(tf.maximum(self._apart, session.votes.apart()))
        if self.over_shares:
            session.count(self._rows)
            refusals.note_own_loop(session.reporter)
            refusals.note_draws(session.streams.taken(), session.reporter)
        if tf.executing_eagerly():
            session.heed_stop("a training loop")
            self.heed_apart()

    def refuse_mixing(self) -> None:
        """Before a step by hand: refuse maps, on the way to the fed rows under way, that look at more than a row."""
        source, self.source = self.source, None
        if source is not None and self._session.exact:
            with tf.init_scope():
                if maps.paddings(source):
                    maps.note_padding("a model", self._session.reporter)

    def _remember(self, optimizer: Any, variables: list[Any]) -> None:
        """Keep what the latest optimizers train, to be compared at the end of the cell."""
        learning = self._session.learning
        learning[id(optimizer)] = variables
        learning.move_to_end(id(optimizer))
        if len(learning) > _REMEMBERED:
            learning.popitem(last=False)

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


def install(stack: ExitStack, session: Session, own: OwnLoop) -> None:
    """Watch batches being drawn, and steps by hand, until ``stack`` closes."""
    stack.push(lambda error, *_: own.heed_apart() if error is None else None)  # of steps in graphs
    _install_draws(stack, session, own)
    replace(stack, session.context.stop, "is_heeded", lambda: bool(session.loops) or session.draws_shares)
    own_reads.install(stack, session.looks)
    own.tapes.install(stack)
    empty_batches.install(stack, lambda: own.without_rows is not None)
    wrap(stack, tf_core.Variable, "_initialize_with_initializer", _initialize_at_once)
    signatures = {name: inspect.signature(getattr(tf_trainer.TensorFlowTrainer, name)) for name in _ON_BATCH}

    def call(kind: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signatures[kind].bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def on_batch(kind: str, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.strategy.lockstep:
            refusals.refuse_own_loop(f"{kind}()", session.strategy.name)
        session.looks.forget()
        own.refuse_mixing()
        with session.entered(kind, model) as loop:
            session.copied.assign(not own.over_shares)
            try:
                _prepare(session, loop, own.over_shares, call(kind, model, *args, **kwargs))
                return original(model, *args, **kwargs)
            finally:
                session.copied.assign(False)

    for name in _ON_BATCH:
        wrap(
            stack,
            tf_trainer.TensorFlowTrainer,
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


def _is_begun_by_cell() -> bool:
    """Whether the call under way comes from the user's code, and neither from Keras nor from ours."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("tfos_magic.", "tensorflow.")):
        frame = frame.f_back
    return frame is not None and not str(frame.f_globals.get("__name__", "")).startswith(("keras.", "tf_keras."))


def _install_draws(stack: ExitStack, session: Session, own: OwnLoop) -> None:
    def begin(original: Any, dataset: Any) -> Any:
        within = session.loop is not None and session.loop.kind != "adapt"  # which merges what ranks see
        if within and is_fed(dataset) and _is_begun_by_cell():
            session.looks.looked = True  # in a callback, whose numbers are of this worker's rows
        shares = session.loop is None and is_sharded(dataset)
        if shares and is_fed(dataset):
            session.looks.begin(dataset)
            own.source = dataset
        iterator = original(dataset)
        iterator._tfos_shares = shares
        return iterator

    def draw(original: Any, iterator: Any) -> Any:
        try:
            batch = original(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            session.draws_shares = False
            raise
        if session.loop is None and (shares := _of_shares(iterator)) is not False:
            own.drawn(batch, known=bool(shares))
        return batch

    def loop(original: Any, source: Any, extra_test: Any, body: Any, *rest: Any) -> Any:
        is_dataset = isinstance(source, tf.data.Dataset)
        shares = is_sharded(source) if is_dataset else _of_shares(source)
        if session.loop is not None or (shares is False and type(source).__name__ != "_VariantDataset"):
            return original(source, extra_test, body, *rest)
        if is_dataset:
            own_reads.refuse_cut(source)
            own.source = source if shares else None

        def counted(batch: Any) -> None:
            own.drawn(batch, known=bool(shares))
            body(batch)

        try:
            with session.looks.inside():  # TensorFlow makes a reduction of such a loop
                return original(source, extra_test, counted, *rest)
        finally:
            session.draws_shares = False

    def assign(original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if session.loop is None and session.draws_shares and variable.trainable and not session.applying:
            session.assigned[id(variable)] = variable
        return original(variable, *args, **kwargs)

    for name in ("assign", "assign_add", "assign_sub"):
        wrap(stack, ResourceVariable, name, assign)
    wrap(stack, tf.data.Dataset, "__iter__", begin)
    wrap(stack, OwnedIterator, "_next_internal", draw)
    loops = control_flow.for_loop_registry._registry
    for kind in (tf.data.Dataset, OwnedIterator):
        original = loops[kind]
        replace_item(stack, loops, kind, lambda *a, _original=original: loop(_original, *a))


def _of_shares(iterator: Any) -> bool | None:
    """Whether an iterator gives shares of batches; None where it came as an argument into a graph, which hides it."""
    return getattr(iterator, "_tfos_shares", None)
