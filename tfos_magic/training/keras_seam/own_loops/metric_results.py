"""Results of metrics in loops that a cell writes itself: those of all rows, where ranks count shares of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras
import tensorflow as tf

from tfos_magic.training.keras_seam.own_loops.batch_numbers import BatchNumbers
from tfos_magic.training.keras_seam.own_loops.iterators import Iterators
from tfos_magic.training.keras_seam.seams import replace, replaced
from tfos_magic.training.logs import metrics
from tfos_magic.training.rank_session import Session


class MetricResults:
    """Sums the states of a metric over ranks for each ``result()`` that a cell asks for outside of Keras's loops.

    ``iterators`` tells whether what a metric is given comes from shares. Where it does not, ranks that have one state
    have counted the same rows, of which none is added up. In a cell that asks for its rank they stay this rank's, for
    not all ranks need come to them. A replica tells by ``count`` in which variables it counts.
    """

    def __init__(
        self,
        session: Session,
        iterators: Iterators,
        numbers: BatchNumbers,
        over_shares: Callable[[], bool],
        count: Callable[[Sequence[tf.Variable]], None],
    ) -> None:
        self._session, self._iterators, self._numbers, self._over_shares = session, iterators, numbers, over_shares
        self._count = count
        self._of_shares: dict[int, Any] = {}
        self._met: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reading = False

    def install(self, stack: ExitStack) -> None:
        """Follow what is asked of metrics of any class until ``stack`` closes."""
        original = keras.Metric.__getattribute__

        def get(metric: Any, name: str) -> Any:
            attribute = original(metric, name)
            if name == "update_state" and self._session.apart:
                self._count(metrics.state_of(metric))
            elif name == "update_state" and self._is_cells_own:
                self._heed(metric)
            elif name == "reset_state":
                self._numbers.reset(metric)
            elif name == "result" and self._is_cells_own and not self._session.apart:
                return lambda *args, **kwargs: self._result(metric, lambda: attribute(*args, **kwargs))
            return attribute

        replace(stack, keras.Metric, "__getattribute__", get)
        self._session.ending.append(self._end)

    def _heed(self, metric: Any) -> None:
        """What it has counted so far is counted by one rank alone, before each counts its own rows."""
        variables = metrics.state_of(metric)
        if not self._iterators.gives_shares:
            self._met.discard(metric)
            self._unite([v for v in variables if self._of_shares.pop(id(v), None) is not None])
            return
        new = {id(v): v for v in variables if id(v) not in self._of_shares}
        self._of_shares.update(new)
        brought = metric not in self._met  # or its first update has made these
        self._met.add(metric)
        if brought and self._session.collectives.rank:
            with tf.init_scope():
                for variable in new.values():
                    variable.assign(tf.zeros_like(variable))

    def _unite(self, variables: Sequence[Any]) -> None:
        """Give every rank what all have counted."""
        with tf.init_scope():
            totals = self._session.collectives.all_reduce([variable.read_value() for variable in variables])
            for variable, total in zip(variables, totals, strict=True):
                variable.assign(total)

    def _end(self) -> None:
        """Leave metrics as one process would."""
        self._unite(list(self._of_shares.values()))
        self._numbers.tell()

    @property
    def _is_cells_own(self) -> bool:
        session = self._session
        within = session.loop is not None or session.step is not None or session.trial is not None or self._reading
        return self._over_shares() and session.strategy.lockstep and not (within or session.context.calls.rank)

    def _result(self, metric: Any, read: Callable[[], Any]) -> Any:
        """The result of the states of all ranks, after which the metric goes on with its own."""
        variables = metrics.state_of(metric)
        if not variables:
            return read()
        metrics.note_unknown(metric, self._session.reporter)
        local_values = [variable.read_value() for variable in variables]
        of_ranks = self._session.collectives.concat([value[tf.newaxis] for value in local_values])
        totals = [tf.reduce_sum(values, 0) for values in of_ranks]
        if not any(id(variable) in self._of_shares for variable in variables):
            alike = tf.reduce_all([tf.reduce_all(tf.equal(values, values[:1])) for values in of_ranks])
            totals = [tf.where(alike, mine, total) for mine, total in zip(local_values, totals, strict=True)]
        for variable, total in zip(variables, totals, strict=True):
            variable.assign(total)
        try:
            with replaced(self, "_reading", True):
                return keras.tree.map_structure(tf.identity, read())
        finally:
            for variable, mine in zip(variables, local_values, strict=True):
                variable.assign(mine)
