"""The loops, steps and gradients of Keras, replaced while a run is under way.

Written against Keras 3 on its TensorFlow backend: ``TFEpochIterator`` is the one seam through which ``fit`` and
``evaluate`` get their data, ``make_train_function`` the one where a step becomes a graph, and ``Optimizer.apply`` the
one through which every gradient passes, as Horovod's ``DistributedOptimizer`` found first.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.callbacks import CallbackList
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from tfos_magic.training import agreement, refusals
from tfos_magic.training.checkpointing.resumable_iterator import ResumableIterator
from tfos_magic.training.firststep.step_trial import of_variables
from tfos_magic.training.firststep.words import explaining
from tfos_magic.training.inputs import own_reads
from tfos_magic.training.inputs.digests import of_arrays
from tfos_magic.training.inputs.joined_elements import of_equal_rows
from tfos_magic.training.inputs.marks import ends_alike, is_sharded
from tfos_magic.training.inputs.own_rows import is_own
from tfos_magic.training.inputs.pipeline_states import PipelineStates
from tfos_magic.training.inputs.sharding import shard_adapter
from tfos_magic.training.keras_seam import devices, jit, predict, reductions, seams, tf_distribute, tf_keras, trials
from tfos_magic.training.keras_seam.callbacks import AfterBatches, RunCallback, monitored, of_rank, verbosity
from tfos_magic.training.keras_seam.data import input_pipelines
from tfos_magic.training.keras_seam.own_loops import draws, tape_loop
from tfos_magic.training.keras_seam.preprocessing import adapt as adapting
from tfos_magic.training.keras_seam.random_numbers import counted
from tfos_magic.training.keras_seam.seams import replace, wrap
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session
from tfos_magic.training.strategies.strategy import Update
from tfos_magic.training.strategies.sync import SyncStrategy


def install(stack: ExitStack, session: Session) -> None:
    """Take hold of Keras until ``stack`` closes. One rank alone needs only loops, steps and progress."""
    _install_loops(stack, session)
    _install_steps(stack, session)
    session.data_clock.install(stack)
    session.python_calls.install(stack)
    devices.install(stack, session.reporter)
    tf_keras.install(stack, session)
    if session.many:
        _install_data(stack, session)
        adapting.install(stack, session)
        own_loop = session.own_loop = tape_loop.OwnLoop(session)
        _install_gradients(stack, session, own_loop)
        tape_loop.install(stack, session, own_loop)
        draws.install(stack, session, own_loop)
        reductions.install(stack, session, own_loop)
        input_pipelines.install(stack, session)
        jit.install(stack, session)
        trials.watch_outputs(stack, partial(_note_output, session))
        tf_distribute.install(stack, session.reporter)
        _install_random(stack, session)
        model = seams.found(seams.TRAINER)
        replace(stack, model, "stop_training", agreement.stop_training(session, model.fit))
        if session.strategy.lockstep and not session.exact:
            refusals.note_per_worker_batches(session.reporter)
    elif session.checkpointer.watches_data:
        _install_winding(stack, session)


def _install_loops(stack: ExitStack, session: Session) -> None:
    owner = seams.found(seams.TRAINER)
    signatures = {name: inspect.signature(getattr(owner, name)) for name in ("fit", "evaluate", "predict")}

    def loop(kind: str, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with session.entered(kind, model) as entered, explaining(session.collectives.size):
            call = signatures[kind].bind(model, *args, **kwargs)
            call.apply_defaults()
            _prepare(session, entered, call.arguments)
            if kind == "predict":
                return predict.predict(session, entered, partial(_call, original, call), call.arguments)
            return original(*call.args, **call.kwargs)

    for name in signatures:
        wrap(stack, owner, name, lambda original, *a, _kind=name, **k: loop(_kind, original, *a, **k))
    wrap(stack, seams.found(seams.BASE_TRAINER), "_get_metrics_result_or_logs", session.global_logs)
    predict.install(stack, session)


def _note_output(session: Session, what: str) -> None:
    """A step says something: it is of a worker's own rows, which nothing in the output tells."""
    if session.step is not None and session.trial is None:
        refusals.note_step_output(what, session.reporter)


def _call(original: Any, call: inspect.BoundArguments, x: Any) -> Any:
    call.arguments["x"] = x
    return original(*call.args, **call.kwargs)


def _prepare(session: Session, loop: Loop, arguments: dict[str, Any]) -> None:
    """Adjust a call to this rank: its callbacks, its output, a step that can be traced with collectives."""
    rank = session.collectives.rank
    arguments["verbose"] = verbosity(arguments["verbose"], rank)
    if loop.kind == "predict":
        return
    if loop.kind == "fit" and isinstance(arguments["x"], tf.data.Dataset) and is_sharded(arguments["x"]):
        arguments["shuffle"] = False  # Keras's default, which it would warn of: a feed shuffles by itself or not at all
    if loop.kind == "fit" and session.many:
        session.collectives.align()
    if session.many:
        refusals.refuse_stateful(loop.model)
        refusals.note_half_precision(loop.model, session.reporter)
        if loop.runs_eagerly:
            refusals.note_eager(session.reporter)
        jit.take_over(session, loop)
    if isinstance(arguments["callbacks"], CallbackList) and loop.kind == "evaluate":
        return  # fit() validates with its own list, with ours in it
    loop.monitored = monitored(arguments["callbacks"])
    callbacks = of_rank(arguments["callbacks"], rank, session.owns)
    if loop.kind == "fit" and session.many:
        agreement.begin_fit(session, loop, arguments, callbacks)
    elif session.many:
        agreement.agree_on_batches(session, loop, callbacks)
    if loop.kind == "fit":
        callbacks = session.checkpointer.enter_fit(loop, arguments, callbacks)
    after = [AfterBatches(session, loop)] if loop.heeds_batches else []
    arguments["callbacks"] = [*callbacks, *after, RunCallback(session, loop)]


def _install_steps(stack: ExitStack, session: Session) -> None:
    def make(kind: str, original: Any, model: Any, force: bool = False) -> None:
        if session.loop is None or session.loop.kind == "predict":
            original(model, force)
            return
        name = f"{kind}_function"
        known = getattr(model, name)
        if getattr(known, "tfos_session", None) is session and not force:
            return
        if known is not None and not force and session.many:
            refusals.refuse_own_function(known, name, kind)
        training = kind == "train"
        session.first_step.schedule.forget(model, "fit" if training else "evaluate")
        inner = model._make_function(session.traced(model, getattr(model, f"{kind}_step"), training))
        setattr(model, name, (session.training_function if training else session.test_function)(model, inner))

    for kind in ("train", "test"):
        wrap(
            stack,
            seams.found(seams.TRAINER),
            f"make_{kind}_function",
            lambda original, *a, _kind=kind, **k: make(_kind, original, *a, **k),
        )


def _install_data(stack: ExitStack, session: Session) -> None:
    rank, size = session.collectives.rank, session.collectives.size

    class SharedEpochIterator(ResumableIterator):
        """Yields this rank's rows of each global batch; all that it is given in ``predict``."""

        def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
            if not session.sharing:
                super().__init__(distribute_strategy, *args, **kwargs)
                return
            EpochIterator.__init__(self, *args, **kwargs)
            self._distribute_strategy = distribute_strategy
            _agree_on_input(session, self.data_adapter, self.steps_per_epoch)
            self._distributed_dataset = of_equal_rows(shard_adapter(self.data_adapter, rank, size))
            loop = session.loops[-1]
            loop.build = partial(session.replicas.build, loop.model, self.element_spec)
            if loop.model._distribute_strategy is not None:  # of the notebook's: Keras builds such models now
                session.replicas.prepare(loop)
            session.checkpointer.watch(self)

        def _interrupted_warning(self) -> None:
            # Keras says of data of unknown length that it ran out, when its first epoch has ended as it should.
            if self.data_adapter.num_batches is not None or self.steps_per_epoch is not None:
                super()._interrupted_warning()

        def _get_iterator(self) -> Any:
            # Keras makes an iterator when an epoch ends and another when the next begins. For arrays the first will do;
            # the order of a dataset may depend on how often it was begun.
            if session.sharing and isinstance(self.data_adapter, ArrayDataAdapter) and self._steps_seen == 0:
                return self._current_iterator or self._distributed_dataset
            return self._distributed_dataset

    replace(stack, tf_trainer, "TFEpochIterator", SharedEpochIterator)


def _install_winding(stack: ExitStack, session: Session) -> None:
    class WatchedEpochIterator(ResumableIterator):
        """Keras's own, known to the session."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            session.checkpointer.watch(self)

    replace(stack, tf_trainer, "TFEpochIterator", WatchedEpochIterator)


def _agree_on_input(session: Session, adapter: Any, steps: int | None) -> None:
    loop = session.loops[-1]
    if not session.strategy.lockstep and loop.kind == "fit" and loop.compared:
        return  # of its validation data, which a rank that came late begins to read when the others have long done so
    loop.compared = True
    dataset = adapter.get_tf_dataset() if isinstance(adapter, TFDatasetAdapter) else None
    sharded = dataset is not None and is_sharded(dataset)
    states = PipelineStates(dataset if session.strategy.lockstep and not sharded else None)
    batches, rows = adapter.num_batches, getattr(adapter, "_num_samples", None)
    digest = of_arrays(tree.flatten(adapter._inputs)) if rows is not None else len(states)
    own = sharded and is_own(dataset)
    batches = None if own else batches
    input_summary = [-1 if batches is None else batches, -1 if rows is None else rows, int(sharded), digest]
    known = steps is not None or own or (sharded and ends_alike(dataset))
    refusals.check_same_input(session.collectives.gather(input_summary), sharded, known)
    if states:
        states.take_over(session.collectives)
    if dataset is not None and loop.kind == "fit":
        session.begun_passes.begin(dataset, session.reporter)
    if sharded and session.exact:
        own_reads.refuse_unlike(dataset)
        session.first_step.heed_maps(loop.model, dataset)


def _install_gradients(stack: ExitStack, session: Session, own_loop: tape_loop.OwnLoop) -> None:
    @tf.autograph.experimental.do_not_convert
    def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if session.trial is not None:
            session.trial.apply(optimizer, list(grads), trainable_variables or optimizer._trainable_variables)
            return optimizer.iterations
        if session.applying:  # an optimizer around another one: the gradients are combined already
            return original(optimizer, grads, trainable_variables)
        if trainable_variables is None and not optimizer.built:
            return original(optimizer, grads)  # Keras says what is wrong
        known = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        gradients, variables, update = list(grads), list(known), Update(optimizer, original)
        if session.exact:
            refusals.refuse_overwritten(variables)
        session.applying = True
        try:
            if session.apart:
                own_loop.apply_by_replica(update, optimizer, gradients, variables)
            elif session.step is None:
                own_loop.apply(update, optimizer, gradients, variables)
            else:
                if session.exact and not session.step.united:
                    gradients = session.first_step.gradients(gradients, variables, session.step)
                session.strategy.apply(session.step, gradients, variables, update)
            return optimizer.iterations
        finally:
            session.applying = False

    def scale_loss(original: Any, optimizer: Any, loss: Any) -> Any:
        return original(optimizer, loss) if session.trial is None else loss  # gradients that overflow show nothing

    def gradient(original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients, step, loop = original(tape, target, sources, *args, **kwargs), session.exact_step, session.loop
        if session.step is None:
            return own_loop.tapes.taken(gradients, sources)
        early = loop is not None and session.trial is None and session.first_step.unites_early(loop.model)
        if step is None or not early or not of_variables(sources) or not isinstance(session.strategy, SyncStrategy):
            return gradients
        mine = session.first_step.gradients(tf.nest.flatten(gradients), tf.nest.flatten(sources), step)
        step.united = True
        return tf.nest.pack_sequence_as(gradients, session.strategy.combine(step, mine))

    wrap(stack, tf.GradientTape, "gradient", gradient)
    for optimizer_type in (BaseOptimizer, LossScaleOptimizer):
        wrap(stack, optimizer_type, "apply", apply)
    wrap(stack, LossScaleOptimizer, "scale_loss", scale_loss)


def _install_random(stack: ExitStack, session: Session) -> None:
    def initialize(original: Any, variable: Any, initializer: Any) -> Any:
        drawn = counted(initializer)

        def initial(*args: Any, **kwargs: Any) -> Any:
            with session.drawing_alike():
                return drawn(*args, **kwargs)

        return original(variable, initial)

    wrap(stack, keras.Variable, "_initialize_with_initializer", initialize)
    session.streams.install(stack)
