"""Steps of ``tf_keras`` models that are counted, voted on and shared by the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tf_keras.src.engine.base_layer import BaseRandomLayer

from tfos_magic.training import refusals
from tfos_magic.training.loop import Loop
from tfos_magic.training.rank_session import Session

_ABSENT = object()
_PARTED = "_tfos_parted"


@contextmanager
def counted(session: Session, model: Any) -> Iterator[None]:
    """Let the steps of ``model``, and the functions made of them, be the session's while it trains or is evaluated.

    They stand in the model's own namespace, where they are found before those of its class, whoever wrote that.
    """
    if getattr(vars(model).get("make_train_function"), "tfos_session", None) is session:
        vars(model)["stop_evaluating"] = False
        yield
        return
    for name in ("train_function", "test_function"):
        if getattr(getattr(model, name), "tfos_session", None) is not session:
            setattr(model, name, None)
    replacements = {
        "train_step": _step(session, model, model.train_step, training=True),
        "test_step": _step(session, model, model.test_step, training=False),
        "make_train_function": _maker(session, model, "train", session.training_function),
        "make_test_function": _maker(session, model, "test", session.test_function),
        "stop_evaluating": False,
    }
    before = {name: vars(model).get(name, _ABSENT) for name in replacements}
    vars(model).update(replacements)
    try:
        yield
    finally:
        for name, value in before.items():
            vars(model).pop(name, None)
            if value is not _ABSENT:
                vars(model)[name] = value


def _step(session: Session, model: Any, step: Callable[[Any], Any], training: bool) -> Callable[[Any], Any]:
    traced = session.traced(model, step, training)

    def counted_step(data: Any) -> Any:
        within = session.step is not None or session.applying  # a step of a step, or one that builds the model
        return step(data) if within else traced(data)

    return counted_step


def _maker(session: Session, model: Any, kind: str, made_by: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    original = getattr(model, f"make_{kind}_function")

    def make(force: bool = False) -> Any:
        inner = original(force)
        if getattr(inner, "tfos_session", None) is not session:
            inner = made_by(model, inner if kind == "train" else _ending(model, inner))
            setattr(model, f"{kind}_function", inner)
        return inner

    make.tfos_session = session  # type: ignore[attr-defined]
    return make


def _ending(model: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let an evaluation end early where the session wants it to, as Keras 3 does by itself."""

    def test(iterator: Any) -> Any:
        if model.stop_evaluating:
            raise StopIteration
        return inner(iterator)

    return test


def without_jit(session: Session, loop: Loop) -> None:
    """Let the steps of ``loop`` be traced without XLA, which cannot wait for other ranks."""
    if loop.model.jit_compile:
        loop.model.jit_compile = False
        loop.restore_jit = True
        session.reporter.notice(
            f"jit_compile is off in {loop.kind}(): tf_keras models exchange gradients inside the code to be compiled. "
            "Results are the same except for random numbers, which XLA draws differently. jit_compile=False hides "
            "this message."
        )


def has_no_function(loop: Loop) -> bool:
    """Whether a step has yet to be made: what it needs was built for the others, which compile() drops."""
    return (loop.model.train_function if loop.kind == "fit" else loop.model.test_function) is None


def build(session: Session, loop: Loop, element_spec: Any) -> None:
    """Make every variable that a step makes, of layers, metrics and optimizers, by tracing one that never runs."""
    step = loop.model.train_step if loop.kind == "fit" else loop.model.test_step

    def trace(batch: Any) -> None:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
            step(batch)

    session.applying = True
    try:
        tf.function(trace, autograph=False).get_concrete_function(tf.nest.map_structure(_any_rows, element_spec))
    finally:
        session.applying = False


def _any_rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank:
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)
    return leaf if hasattr(leaf, "dtype") else None


def part_generators(session: Session, model: Any) -> None:
    """Give each random layer of ``model`` numbers that are this rank's own, once in a run."""
    drawing = [layer for layer in model._flatten_layers() if isinstance(layer, BaseRandomLayer)]
    refusals.note_random_layers(drawing, session.reporter)
    mix = session.collectives.rank * 0x9E3779B1 & 0x7FFFFFFF
    for index, generator in enumerate(layer._random_generator for layer in drawing):
        if getattr(generator, _PARTED, None) == session.context.run_id:
            continue
        setattr(generator, _PARTED, session.context.run_id)
        generator._maybe_init()
        if generator._generator is not None:
            state = np.array(generator._generator.state)
            state[-1] ^= mix
            generator._generator.state.assign(state)
        elif mix:
            generator._seed = (generator._seed or session.context.seed + index) ^ mix
