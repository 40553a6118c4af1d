"""Making plain Keras distributed for the time of one cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import keras

from tfos_magic.errors import TrainingError
from tfos_magic.training import agreement, ranks
from tfos_magic.training.context import RunContext, StopSignal
from tfos_magic.training.keras_seam import summary_files
from tfos_magic.training.keras_seam.hooks import install
from tfos_magic.training.keras_seam.random_numbers import install_entropy, install_own_seeds
from tfos_magic.training.parameter_server.async_strategy import AsyncStrategy, served
from tfos_magic.training.rank_session import Session
from tfos_magic.training.strategies.local import LocalStrategy
from tfos_magic.training.strategies.strategy import Strategy
from tfos_magic.training.strategies.sync import SyncStrategy
from tfos_magic.values import random_state

__all__ = ["RunContext", "StopSignal", "distributed"]

STRATEGIES: dict[str, Callable[[RunContext], Strategy]] = {
    SyncStrategy.name: SyncStrategy,
    LocalStrategy.name: LocalStrategy,
    AsyncStrategy.name: AsyncStrategy,
}


@contextmanager
def distributed(context: RunContext) -> Iterator[Session]:
    """Make ``keras.Model.fit`` and ``evaluate`` work on the global batch together with the other ranks.

    Python, NumPy, TensorFlow and Keras begin with the states of ``context.random``, else with ``context.seed``, so that
    ranks shuffle and initialise alike. The cell then gives the weights of one plain process, whatever the number of
    ranks. ``fit`` raises :class:`RunStopped` after ``context.stop`` was requested on any rank, :class:`TrainingError`
    for what cannot be distributed, and :class:`ClusterError` when a peer is lost. When the block ends, Keras is as it
    was.
    """
    if context.strategy not in STRATEGIES:
        raise TrainingError(f"unknown strategy {context.strategy!r}: choose one of {', '.join(sorted(STRATEGIES))}")
    _seed(context)
    with ExitStack() as stack:
        if context.strategy == AsyncStrategy.name:
            context = stack.enter_context(served(context))
        context.collectives.align()
        if context.strategy != AsyncStrategy.name:  # whose workers may come late
            context.collectives.barrier()  # rank 0 writes to the disk when the others have seen it as it was
        install_entropy(stack, context.seed)
        if context.random and "tensorflow" not in context.random:
            install_own_seeds(stack)
        session = Session(context, STRATEGIES[context.strategy](context))
        stack.callback(session.close)
        stack.enter_context(ranks.current(context))
        if context.event_files and context.collectives.rank == 0:
            stack.enter_context(summary_files.followed(context.run_id, context.emit, session.reporter.notice))
        install(stack, session)
        with context.collectives.explaining("a step"):
            yield session
        context.collectives.finish()
        agreement.end_cell(session)


def _seed(context: RunContext) -> None:
    """What ``context.random`` leaves out follows from the seed, but for Keras, which draws its own seed from Python."""
    keras.utils.set_random_seed(context.seed)
    random_state.forget_generator()
    if context.random:
        unseeded = {"keras": {"seed": None, "generator": None}}
        random_state.restored({**random_state.taken(), **unseeded, **context.random})
