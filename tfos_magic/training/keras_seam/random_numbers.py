"""Random numbers of a run: inside a step each worker draws its own, outside of one all draw alike.

All of TensorFlow's and Keras's random numbers come from some thirty operations, which take a seed or the key of a
counter-based generator (Salmon et al. 2011). Seeds are the same on all workers; inside a step, where workers have rows
of their own, each mixes its rank into them, so that states of generators stay equal everywhere. Sources that ask the
system for entropy are given the run's seed, or each worker would shuffle the data in an order of its own.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops, gen_stateless_random_ops_v2

from tfos_magic.training.keras_seam.seams import replace, wrap
from tfos_magic.values import random_state

_MODULES = (gen_random_ops, gen_stateless_random_ops, gen_stateless_random_ops_v2)
_SEEDS = ("seed2", "key", "seed")
_NAMED = 5

Around = Callable[..., Any]
"""Called as ``around(original, arguments)`` with an operation and its bound arguments, by name."""


def operations() -> list[tuple[Any, str]]:
    """The module and the name of each operation that draws random numbers."""
    return [
        (module, name)
        for module in _MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and _draws(function, name)
    ]


def _draws(function: Callable[..., Any], name: str) -> bool:
    known = inspect.signature(function).parameters
    return name[0].islower() and "ctx" not in known and "_get_" not in name and any(s in known for s in _SEEDS)


def install_around(stack: ExitStack, around: Around) -> None:
    """Let every operation that draws random numbers pass through ``around`` until ``stack`` closes."""
    for module, name in operations():
        signature = inspect.signature(getattr(module, name))

        def call(original: Any, *args: Any, _signature: inspect.Signature = signature, **kwargs: Any) -> Any:
            bound = _signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return around(original, dict(bound.arguments))

        wrap(stack, module, name, call)


def counted(initializer: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer of the user's that gives where nothing is traced what it gives in the graph that is traced now.

    There TensorFlow counts seeds through from 0, and each operation begins its stream. Keras's own have their seeds.
    """
    if tf.executing_eagerly() or isinstance(initializer, keras.initializers.Initializer):
        return initializer
    counts, graph = random_seed._graph_to_seed_dict, tf.compat.v1.get_default_graph()

    def initial(*args: Any, **kwargs: Any) -> Any:
        before = after = counts.get(graph, 0)

        @tf.autograph.experimental.do_not_convert
        def made() -> Any:
            nonlocal after
            here = tf.compat.v1.get_default_graph()
            counts[here] = before
            value = initializer(*args, **kwargs)
            after = counts[here]
            # Here NumPy's numbers would become a tensor of their own type, which no variable of another takes.
            return value if tf.is_tensor(value) else tf.convert_to_tensor(value, kwargs.get("dtype"))

        value = tf.function(made)()
        counts[graph] = after
        return value

    return initial


class RandomStreams:
    """The streams of one worker.

    ``inside`` tells whether a step is under way, or traced, on rows of its own; ``initial``, whether initial values are
    drawn, which are not counted.
    """

    def __init__(self, rank: int, inside: Callable[[], bool], initial: Callable[[], bool]) -> None:
        self._mix = rank * 0x9E3779B1 & 0x7FFFFFFF
        self._inside, self._initial = inside, initial
        self._drawn: dict[str, None] = {}
        self.draws = 0
        """How many operations that draw were run, or traced."""

    def install(self, stack: ExitStack) -> None:
        """Part the streams of steps until ``stack`` closes."""
        install_around(stack, self._draw)

    def taken(self) -> str:
        """Where steps have drawn random numbers since this was last asked, in words; empty where they have not."""
        names, self._drawn = list(self._drawn), {}
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more

    def _draw(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if self._initial() or in_symbolic_scope():  # what Keras computes for shapes alone is never run
            return original(**arguments)
        self.draws += 1
        if not self._inside():
            return original(**arguments)
        self._drawn[_place(original)] = None
        return original(**{**arguments, **self._parted(arguments)})

    def _parted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = next(name for name in _SEEDS if name in arguments)
        if not self._mix:
            return {}
        if name == "seed2":
            return {"seed": arguments["seed"] or 0, "seed2": (arguments["seed2"] or 0) ^ self._mix}
        seeds = tf.convert_to_tensor(arguments[name])
        return {name: tf.bitwise.bitwise_xor(seeds, tf.cast(self._mix, seeds.dtype))}


def _place(original: Any) -> str:
    """The layer that draws, else the operation."""
    path = str(current_path() or "")
    return path.rsplit("/", 1)[-1] or f"tf.random ({original.__name__})"


def install_entropy(stack: ExitStack, seed: int) -> None:
    """Give generators that are made without a seed one that follows from the run's, until ``stack`` closes.

    That is ``random.Random()`` and ``random.seed()``, NumPy's ``default_rng()`` and its kin, and
    ``tf.random.Generator.from_non_deterministic_state()``. What the system gives (``os.urandom``, clocks) stays.
    """
    source = random.Random(seed)
    bits = source.getrandbits

    def reseed(original: Any, generator: random.Random, a: Any = None, version: int = 2) -> None:
        original(generator, bits(128) if a is None else a, version)

    def seed_module(original: Any, a: Any = None, version: int = 2) -> None:
        original(bits(128) if a is None else a, version)

    def from_seed(cls: Any, alg: Any = None) -> Any:
        return cls.from_seed(bits(62), alg)

    wrap(stack, random.Random, "seed", reseed)
    wrap(stack, random, "seed", seed_module)
    replace(stack, np.random.bit_generator, "randbits", bits)
    replace(stack, tf.random.Generator, "from_non_deterministic_state", classmethod(from_seed))


def install_own_seeds(stack: ExitStack) -> None:
    """Let an operation's or a dataset's own seed be all that it draws by, until ``stack`` closes or the cell calls
    ``tf.random.set_seed``: so it is in a process that has not called it, and what the run's seed is for is the rest."""

    def of_operation(original: Any, op_seed: Any) -> Any:
        if op_seed is None or not random_state.is_restored(eager_context.context()):
            return original(op_seed)
        return random_seed.DEFAULT_GRAPH_SEED, random_seed._truncate_seed(op_seed)

    wrap(stack, random_seed, "get_seed", of_operation)
