"""The states of the random generators that a whole process shares, as JSON has them, on their way to a cell and back.

These are Python's, NumPy's, TensorFlow's and Keras's. The last two are looked at where they are loaded; states of
theirs that come to a process without them wait there for the next cell.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

_NAMES = ("python", "numpy", "tensorflow", "generator", "keras")
_GENERATORS = "tensorflow.python.ops.stateful_random_ops"
_waiting: dict[str, Any] = {}
_last: tuple[bytes, int] = (b"", 0)


class _Restored(random.Random):
    """TensorFlow's generator of seeds while nobody has called ``tf.random.set_seed`` since it was restored."""


def taken() -> dict[str, Any]:
    """The states as they are now, by whose they are; without TensorFlow's where it was not seeded."""
    states = {"python": random.getstate(), "numpy": _numpy(), "tensorflow": _tensorflow(), "keras": _keras()}
    states["generator"] = _generator()
    return {**_waiting, **{name: state for name, state in states.items() if state}}


def of_seed(seed: int) -> dict[str, Any]:
    """The states to begin with where nobody has seeded: what is drawn by no seed of its own follows from ``seed``."""
    return {"python": random.Random(seed).getstate()}


def alike(gather: Callable[[list[int]], Any]) -> dict[str, Any]:
    """The states that all processes have alike, such as those that a program has seeded; ``gather`` brings their
    integers together, a row for each process."""
    states = taken()
    texts = [json.dumps(states[name], sort_keys=True) if name in states else "" for name in _NAMES]
    found = gather([zlib.crc32(text.encode()) for text in texts])
    return {
        name: states[name]
        for name, of_all in zip(_NAMES, found.T, strict=True)
        if (of_all == of_all[0]).all() and name in states
    }


def restored(states: dict[str, Any]) -> None:
    """Put back what :func:`taken` gave, here or in another process."""
    version, words, gauss = states["python"]
    if numpy := states.get("numpy"):
        np.random.set_state(("MT19937", np.array(numpy[0], np.uint32), *numpy[1:]))
    for name, put, loaded in (
        ("tensorflow", _put_tensorflow, _module("tensorflow.python.eager.context")),
        ("generator", _put_generator, _module(_GENERATORS)),
        ("keras", _put_keras, _module("keras.src.random.seed_generator")),
    ):
        _waiting.pop(name, None)
        if name in states and loaded:
            put(states[name])
        elif name in states:
            _waiting[name] = states[name]
    random.setstate((version, tuple(words), gauss))


def ended(begun: dict[str, Any], states: dict[str, Any]) -> None:
    """Let this process have the ``states`` that a cell has left which began with those ``begun``."""
    global _last
    if not states:
        return
    if "tensorflow" not in begun and not states.get("tensorflow", {}).get("anew"):
        states = {name: state for name, state in states.items() if name != "tensorflow"}  # seeded for the cell alone
    restored(states)
    _last = _digest(taken()), _last[1]


def seed_for(states: dict[str, Any]) -> int:
    """A seed below 2^31 that follows from Python's state; another one where the last cell has left these ``states``."""
    global _last
    digest = _digest(states)
    seeded = "tensorflow" not in _waiting and states.get("tensorflow", {}).get("anew")
    _last = digest, _last[1] + 1 if digest == _last[0] and not seeded else 0
    number = _digest({"python": [states["python"], _last[1]]})
    return int.from_bytes(number[:4], "little") >> 1


def _digest(states: dict[str, Any]) -> bytes:
    numbers = [state if isinstance(state, (list, tuple)) else {**state, "anew": None} for state in states.values()]
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).digest()


def _module(name: str) -> Any:
    return sys.modules.get(name)


def _numpy() -> list[Any]:
    """Empty where NumPy draws from another generator than its own."""
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return []
    mt_state = state["state"]
    return [mt_state["key"].tolist(), int(mt_state["pos"]), int(state["has_gauss"]), float(state["gauss"])]


def _tensorflow() -> dict[str, Any]:
    """``anew`` says whether it was seeded after its state was restored."""
    module = _module("tensorflow.python.eager.context")
    context = module.context_safe() if module else None
    if context is None or context._seed is None:
        return {}
    seeds = context._rng
    return {"seed": int(context._seed), "seeds": seeds.getstate(), "anew": not is_restored(context)}


def is_restored(context: Any) -> bool:
    """Whether nobody has called ``tf.random.set_seed`` since TensorFlow's state was restored in its eager context."""
    return isinstance(context._rng, _Restored)


def _put_tensorflow(state: dict[str, Any]) -> None:
    context = _module("tensorflow.python.eager.context").context()
    if state["anew"]:  # which lets operations with seeds of their own begin anew, as seeding does
        context._set_global_seed(state["seed"])
    version, words, gauss = state["seeds"]
    context._seed, context._rng = state["seed"], _Restored()
    context._rng.setstate((version, tuple(words), gauss))


def forget_generator() -> None:
    """Let ``tf.random.get_global_generator()`` make another one."""
    if module := _module(_GENERATORS):
        module.global_generator = None


def _generator() -> dict[str, Any]:
    """That of ``tf.random.get_global_generator()``, where somebody has asked for it or set it."""
    module = _module(_GENERATORS)
    generator = module.global_generator if module else None
    if generator is None:
        return {}
    return {"algorithm": int(generator.algorithm), "words": [int(word) for word in generator.state.numpy()]}


def _put_generator(state: dict[str, Any]) -> None:
    module = _module(_GENERATORS)
    present = module.global_generator
    if present is not None and int(present.algorithm) == state["algorithm"]:  # which the user's names may hold
        present.reset(state["words"])
    else:
        module.set_global_generator(module.Generator.from_state(state["words"], state["algorithm"]))


def _keras() -> dict[str, Any]:
    if not _module("keras.src.random.seed_generator"):
        return {}
    known = _module("keras.src.backend.common.global_state").get_global_attribute
    generator = known("global_seed_generator")
    drawn = None if generator is None else [int(word) for word in np.asarray(generator.state)]
    return {"seed": known("global_random_seed"), "generator": drawn}


def _put_keras(state: dict[str, Any]) -> None:
    module = _module("keras.src.random.seed_generator")
    attributes = _module("keras.src.backend.common.global_state")
    attributes.set_global_attribute("global_random_seed", state["seed"])
    generator = attributes.get_global_attribute("global_seed_generator")
    if state["generator"] is None:
        generator = None
    else:
        generator = generator or module.SeedGenerator(seed=0, name="seed_generator")
        generator.state.assign(np.array(state["generator"], generator.state.dtype))
    attributes.set_global_attribute("global_seed_generator", generator)
