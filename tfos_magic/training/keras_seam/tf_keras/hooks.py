"""The loops, steps and gradients of ``tf_keras``, replaced while a run is under way.

``DataHandler`` is the one seam through which ``fit`` and ``evaluate`` get their data, ``train_step`` and ``test_step``
are what a step is, and ``apply_gradients`` of either kind of optimizer gets every gradient before it is clipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tf_keras
from tf_keras.src.engine.base_preprocessing_layer import PreprocessingLayer
from tf_keras.src.engine.data_adapter import DataHandler, TensorLikeDataAdapter
from tf_keras.src.mixed_precision import loss_scale_optimizer
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.utils import tf_utils

from tfos_magic.training import agreement
from tfos_magic.training import refusals as common
from tfos_magic.training.keras_seam.callbacks import monitored, of_rank, verbosity
from tfos_magic.training.keras_seam.seams import replace, wrap
from tfos_magic.training.keras_seam.tf_keras import callbacks, data, reductions, refusals, steps
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session
from tfos_magic.training.strategies.strategy import Update

_SCALED = (loss_scale_optimizer.LossScaleOptimizer, loss_scale_optimizer.LossScaleOptimizerV3)


def install(stack: ExitStack, session: Session) -> None:
    """Take hold of ``tf_keras`` until ``stack`` closes. One rank alone needs only loops, steps and progress."""
    _install_loops(stack, session)
    if session.many:
        _install_data(stack, session)
        _install_gradients(stack, session)
        reductions.install(stack, session)
        replace(stack, tf_keras.Model, "stop_training", agreement.stop_training(session, tf_keras.Model.fit))


def _install_loops(stack: ExitStack, session: Session) -> None:
    signatures = {name: inspect.signature(getattr(tf_keras.Model, name)) for name in ("fit", "evaluate", "predict")}

    def loop(kind: str, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with session.entered(kind, model) as entered, _stepping(session, entered):
            call = signatures[kind].bind(model, *args, **kwargs)
            call.apply_defaults()
            _prepare(session, entered, call.arguments)
            return original(*call.args, **call.kwargs)

    def global_logs(original: Any, model: Any, logs: Any) -> Any:
        return tf_utils.sync_to_numpy_or_python_type(session.global_logs(original, model, logs))

    for name in signatures:
        wrap(stack, tf_keras.Model, name, lambda original, *a, _kind=name, **k: loop(_kind, original, *a, **k))
    wrap(stack, tf_keras.Model, "_validate_and_get_metrics_result", global_logs)


@contextmanager
def _stepping(session: Session, loop: Loop) -> Iterator[None]:
    if loop.kind == "predict":
        yield
        return
    with steps.counted(session, loop.model):
        yield


def _prepare(session: Session, loop: Loop, arguments: dict[str, Any]) -> None:
    """Adjust a call to this rank: what it may train, its callbacks, its output."""
    rank = session.collectives.rank
    arguments["verbose"] = verbosity(arguments["verbose"], rank)
    if loop.kind == "predict":
        if session.many and data.is_share(arguments["x"]):
            refusals.refuse("predict() on a fed DataFrame")
        return
    if session.many:
        refusals.check(session, loop, arguments)
        steps.without_jit(session, loop)
    if loop.kind == "fit" and session.many:
        session.collectives.align()
    if isinstance(arguments["callbacks"], tf_keras.callbacks.CallbackList):
        return  # fit() validates with its own list, with ours in it
    loop.monitored = monitored(arguments["callbacks"])
    kept = of_rank(arguments["callbacks"], rank, session.owns, tf_keras)
    if loop.kind == "fit" and session.many:
        common.note_batch_callbacks(kept, session.reporter)
        if agreement.any_wishes(session, any(map(common.acts_on_batches, kept)), {}):
            kept.append(callbacks.AfterBatches(session, loop))
    arguments["callbacks"] = [*kept, callbacks.RunCallback(session, loop)]


def _install_data(stack: ExitStack, session: Session) -> None:
    def configure(original: Any, handler: Any, *args: Any, **kwargs: Any) -> None:
        original(handler, *args, **kwargs)
        if session.sharing:
            data.share_out(session, handler)

    def slice_inputs(original: Any, adapter: Any, numbers: Any, inputs: Any) -> Any:
        shared = session.sharing and data.shares_numbers(adapter)
        return original(adapter, data.share(session, numbers) if shared else numbers, inputs)

    def adapt(original: Any, layer: Any, rows: Any, *args: Any, **kwargs: Any) -> Any:
        common.refuse_adapt_on_share(layer, data.is_share(rows))
        return original(layer, rows, *args, **kwargs)

    wrap(stack, DataHandler, "_configure_dataset_and_inferred_steps", configure)
    wrap(stack, TensorLikeDataAdapter, "slice_inputs", slice_inputs)
    wrap(stack, PreprocessingLayer, "adapt", adapt)


def _install_gradients(stack: ExitStack, session: Session) -> None:
    def apply(original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if session.applying:  # a step that is traced to build the model
            return original(optimizer, grads_and_vars, *args, **kwargs)
        if session.step is None:
            refusals.refuse("apply_gradients() outside of fit()")
        pairs = list(grads_and_vars)

        def take(_: Any, gradients: Any, variables: Any) -> None:
            original(optimizer, zip(gradients, variables, strict=True), *args, **kwargs)

        session.applying = True
        try:
            gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
            session.strategy.apply(session.step, gradients, variables, Update(optimizer, take))
            return optimizer.iterations
        finally:
            session.applying = False

    def refuse(what: str) -> Any:
        return lambda original, *args, **kwargs: refusals.refuse(what)

    for kind in (tf_keras.optimizers.Optimizer, OptimizerV2):
        wrap(stack, kind, "apply_gradients", apply)
    for kind in _SCALED:
        wrap(stack, kind, "apply_gradients", refuse("an optimizer with loss scaling (mixed precision)"))
    for name in ("train_on_batch", "test_on_batch"):
        wrap(stack, tf_keras.Model, name, refuse(f"{name}()"))
