"""Variables that a program assigns in ``strategy.run``: afterwards they are alike on all ranks, as
``tf.VariableAggregation`` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_v2_func_graphs as branches

from tfos_magic.errors import TrainingError
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.keras_seam.seams import replaced
from tfos_magic.training.logs.metrics import NUMBERS

_Aggregation = tf.VariableAggregation
_BRANCHES = (branches.CondBranchFuncGraph, branches.WhileCondFuncGraph, branches.WhileBodyFuncGraph)

_BRANCH = (
    "a replica assigns it inside a condition or a loop of a graph, which some workers may not reach. Create it with "
    "synchronization=tf.VariableSynchronization.ON_READ, which adds up after strategy.run."
)
_OWN_PART = (
    "with ON_READ, assign() sets the part of one replica, which is not kept here: use assign_add() or assign_sub() in "
    "strategy.run, and assign() outside it."
)


class ReplicaVariables:
    """What replicas assign, brought together as TensorFlow's ``MirroredVariable`` and ``SyncOnReadVariable`` do it.

    Sums are of the values assigned, at once or, ``ON_READ``, after the replicas' step. Of others the mean or rank 0's
    value is taken after it. Whole numbers without an aggregation stay each rank's own. What metrics count begins in
    each step with what all have counted on rank 0, and with nothing on the others, and is added up after it.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._counted: dict[int, tf.Variable] = {}
        self._assigned: dict[int, tf.Variable] = {}
        self._added: dict[int, tf.Variable] = {}  # by this rank to the variable of that id, since the last settling
        self._graph: Any = None

    @contextmanager
    def within_step(self) -> Iterator[None]:
        """In the block a replica's step is run or traced."""
        self._empty(self._counted.values())
        with replaced(self, "_graph", None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()):
            yield

    def count(self, variables: Sequence[tf.Variable]) -> None:
        """A metric is about to count in ``variables``, for the first time or again."""
        new = [variable for variable in variables if id(variable) not in self._counted]
        self._counted.update({id(variable): variable for variable in new})
        with tf.init_scope() if self._graph is None else self._graph.as_default():  # ahead of a branch, in each step
            self._empty(new)

    def _empty(self, variables: Iterable[tf.Variable]) -> None:
        if self._collectives.rank:
            for variable in variables:
                variable.assign(tf.zeros_like(variable))

    def assign(self, method: str, assign: Callable[..., Any], variable: tf.Variable, value: Any) -> Any:
        """Set ``variable`` to, or by, ``value`` in a replica's step; ``assign`` is what its ``method`` does."""
        aggregation, number = variable.aggregation, variable.dtype.name in NUMBERS
        if (
            id(variable) in self._counted
            or not number
            or (aggregation is _Aggregation.NONE and not variable.dtype.is_floating)
        ):
            return assign(variable, value)
        if aggregation is not _Aggregation.SUM:
            self._assigned[id(variable)] = variable
            return assign(variable, value)
        if method.startswith("scatter"):
            _refuse(
                variable, (f"a replica sets some of its elements, with {method}(): use assign_add() with all of them.")
            )
        if variable.synchronization is tf.VariableSynchronization.ON_READ:
            if method == "assign":
                _refuse(variable, _OWN_PART)
            self._assigned[id(variable)] = variable
            assign(self._part(variable), value)
            return assign(variable, value)
        if self._is_in_branch():
            _refuse(variable, _BRANCH)
        return assign(variable, self._collectives.all_reduce([tf.convert_to_tensor(value, variable.dtype)])[0])

    def settle(self) -> None:
        """After the step: give all ranks the same values."""
        variables = [*self._counted.values(), *self._assigned.values()]
        totals = self._collectives.all_reduce([self._contribution(variable) for variable in variables])
        for variable, total in zip(variables, totals, strict=True):
            if self._is_mean(variable):
                total = tf.cast(total / self._collectives.size, variable.dtype)
            variable.assign(total)
        for part in self._added.values():
            part.assign(tf.zeros_like(part))

    def _contribution(self, variable: tf.Variable) -> tf.Tensor:
        """What this rank adds to the total that ``variable`` becomes."""
        if self._collectives.rank == 0 or id(variable) in self._counted or self._is_mean(variable):
            return variable.read_value()
        part = self._added.get(id(variable))
        return tf.zeros_like(variable) if part is None else part.read_value()

    def _is_mean(self, variable: tf.Variable) -> bool:
        is_mean = variable.aggregation in (_Aggregation.NONE, _Aggregation.MEAN)
        return is_mean and id(variable) not in self._counted

    def _part(self, variable: tf.Variable) -> tf.Variable:
        if id(variable) not in self._added:
            with tf.init_scope():
                self._added[id(variable)] = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
        return self._added[id(variable)]

    def _is_in_branch(self) -> bool:
        """Whether what is traced are operations to which not all ranks need come."""
        graph = tf.compat.v1.get_default_graph()
        while graph not in (self._graph, None):
            if isinstance(graph, _BRANCHES):
                return True
            graph = getattr(graph, "outer_graph", None)
        return False


def _refuse(variable: tf.Variable, why: str) -> None:
    raise TrainingError(
        f"variable {variable.name} adds up what replicas assign (tf.VariableAggregation.SUM), but {why}"
    )
