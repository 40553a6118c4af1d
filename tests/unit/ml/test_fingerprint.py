"""A training is known by what is fitted, how and on which rows; not by names, nor by how long it goes on."""

from __future__ import annotations

import importlib
import random
import sys
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from tfos_magic.ml.fingerprint import fingerprint
from tfos_magic.ml.fit_on_workers import REGRESS, FitJob


def model(units: int = 3, rate: float = 0.1) -> Any:
    made = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(rate), "mse")
    return made


OPTIONS = {"batch_size": 8, "resume": True, "frames": {"train": object()}}
ASKED = FitJob(REGRESS, model(), None, {}, 2)


@pytest.mark.parametrize(
    "alike", [replace(ASKED, model=model()), replace(ASKED, epochs=5)], ids=["made anew", "for longer"]
)
def test_it_is_found_again(alike: FitJob) -> None:
    assert fingerprint(alike, {**OPTIONS, "resume": False}, "8 1") == fingerprint(ASKED, OPTIONS, "8 1")


@pytest.mark.parametrize(
    "other",
    [
        (replace(ASKED, model=model(units=4)), OPTIONS, "8 1"),
        (replace(ASKED, model=model(rate=0.2)), OPTIONS, "8 1"),
        (replace(ASKED, params={"rate": 1}), OPTIONS, "8 1"),
        (replace(ASKED, model=None, make=lambda params: model(4)), OPTIONS, "8 1"),
        (ASKED, {**OPTIONS, "batch_size": 9}, "8 1"),
        (replace(ASKED, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)]), OPTIONS, "8 1"),
        (ASKED, OPTIONS, "8 2"),
    ],
    ids=["layers", "optimizer", "params", "function", "batch size", "callbacks", "rows"],
)
def test_another_is_another(other: tuple[FitJob, dict[str, Any], str]) -> None:
    assert fingerprint(*other) != fingerprint(ASKED, OPTIONS, "8 1")


def test_functions_differ_by_what_they_do() -> None:
    words = {
        fingerprint(replace(ASKED, model=None, make=make), OPTIONS, "8 1")
        for make in (lambda params: model(3), lambda params: model(4), lambda params: model(3, 0.2))
    }
    assert len(words) == 3


class Maker:
    def __init__(self, units: int) -> None:
        self.units = units

    def __call__(self, params: Any) -> Any:
        return model(self.units)

    def make(self, params: Any) -> Any:
        return model(self.units)


def closed_over(units: int) -> Any:
    return lambda params: model(units)


def with_default(units: int) -> Any:
    return lambda params, given=units: model(given)


def of_a_global(units: int) -> Any:
    space = {"model": model, "units": units}
    exec("def make(params): return model(units)", space)
    return space["make"]


def of_a_helper(units: int) -> Any:
    space = {"model": model}
    exec(f"def helper(): return model({units})\ndef make(params): return helper()", space)
    return space["make"]


def of_a_class(units: int) -> Any:
    class Conf:
        UNITS = units

    return lambda params: model(Conf.UNITS)


def of_a_base(units: int) -> Any:
    class Base:
        def build(self) -> Any:
            return model(units)

    class Derived(Base):
        pass

    return lambda params: Derived().build()


def of_a_static_method(units: int) -> Any:
    class Conf:
        @staticmethod
        def units() -> int:
            return units

    return lambda params: model(Conf.units())


def of_a_property(units: int) -> Any:
    class Conf:
        @property
        def units(self) -> int:
            return units

    return lambda params: model(Conf().units)


@pytest.mark.parametrize(
    "maker",
    [
        closed_over,
        of_a_class,
        of_a_base,
        of_a_static_method,
        of_a_property,
        with_default,
        of_a_global,
        of_a_helper,
        Maker,
        lambda units: Maker(units).make,
        lambda units: partial(model, units),
    ],
    ids=[
        "closure",
        "class",
        "base",
        "static method",
        "property",
        "default",
        "global",
        "helper",
        "object",
        "method",
        "partial",
    ],
)
def test_what_a_function_reads_counts(maker: Any) -> None:
    words = [fingerprint(replace(ASKED, model=None, make=maker(units)), OPTIONS, "8 1") for units in (3, 3, 4)]
    assert words[0] == words[1] != words[2]


class Scaled(keras.Model):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs) * self.factor


def with_loss(loss: Any) -> Any:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    made.compile("adam", loss)
    return made


def loss_of(factor: float) -> Any:
    return lambda truth, made: factor * keras.ops.mean((truth - made) ** 2)


def frozen(trainable: float) -> Any:
    made = with_loss("mse")
    made.set_weights([np.ones_like(each) for each in made.get_weights()])
    made.layers[0].trainable = trainable > 1
    return made


def adapted(factor: float) -> Any:
    layer = keras.layers.Normalization()
    layer.adapt(np.array([[1.0, 2.0], [3.0, 5.0]]) * factor)
    return keras.Sequential([keras.Input((2,)), layer, keras.layers.Dense(1, kernel_initializer="ones")])


def weighted(factor: float) -> Any:
    made = with_loss("mse")
    made.set_weights([np.full_like(each, factor) for each in made.get_weights()])
    return made


class Table(keras.Model):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._table, self.dense = {"factor": [factor]}, keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs) * self._table["factor"][0]


class Weighted(keras.losses.Loss):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factors = [factor]

    def call(self, truth: Any, made: Any) -> Any:
        return self._factors[0] * keras.ops.mean((truth - made) ** 2, -1)

    def get_config(self) -> dict[str, Any]:
        return {}


def scheduled(factor: float) -> Any:
    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        RATE = factor

        def __call__(self, step: Any) -> Any:
            return self.RATE

        def get_config(self) -> dict[str, Any]:
            return {}

    made = with_loss("mse")
    made.compile(keras.optimizers.SGD(Rate()), "mse")
    return made


def initialized(factor: float) -> Any:
    class Constant(keras.initializers.Initializer):
        FACTOR = factor

        def __call__(self, shape: Any, dtype: Any = None, **_: Any) -> Any:
            return keras.ops.ones(shape, dtype) * self.FACTOR

    return keras.Sequential([keras.layers.Dense(1, kernel_initializer=Constant())])


def moved(factor: float) -> Any:
    made = with_loss("mse")
    made.optimizer.build(made.trainable_variables)
    made.optimizer.variables[2].assign(made.optimizer.variables[2] + factor)
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda factor: with_loss(Weighted(factor)),
        scheduled,
        initialized,
        moved,
        lambda factor: with_loss(keras.losses.Huber(factor)),
        lambda f: with_loss(loss_of(f)),
        frozen,
        Scaled,
        Table,
        adapted,
        weighted,
    ],
    ids=[
        "own loss",
        "schedule",
        "initializer",
        "momentum",
        "loss",
        "function",
        "frozen",
        "attribute",
        "private",
        "adapted",
        "weights",
    ],
)
def test_what_training_does_not_set_counts(make: Any) -> None:
    words = [fingerprint(replace(ASKED, model=make(factor)), OPTIONS, "8 1") for factor in (1.0, 1.0, 2.0)]
    assert words[0] == words[1] != words[2]


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Steps(keras.callbacks.Callback):
    def __init__(self, steps: Any) -> None:
        super().__init__()
        self._steps = steps


class Named(dict[str, int]):
    name = ""


def named_dict(n: int) -> Any:
    made = Named()
    made.name = str(n)
    return made


class Session:
    """As a SparkSession, it is another one in each process."""

    __module__ = "pyspark.sql.session"

    def __init__(self) -> None:
        self.port = object()


KINDS = {
    "session": lambda n: (n, Session()),
    "number": lambda n: n,
    "list": lambda n: [n],
    "dict": lambda n: {"at": [n]},
    "keys": lambda n: {n: 0},
    "slots": Slotted,
    "attribute of a dict": named_dict,
    "data": lambda n: pd.DataFrame({"a": [1, 2, n]}),
    "default": lambda n: defaultdict(lambda: n),
    "random": random.Random,
    "generator": np.random.default_rng,
    "fraction": Fraction,
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_a_callback_keeps_counts(kind: Any) -> None:
    words = [fingerprint(replace(ASKED, callbacks=[Steps(kind(n))]), OPTIONS, "8 1") for n in (1, 1, 2)]
    assert words[0] == words[1] != words[2]


IMPORTED = "import nets_of_user\ndef make(params): return nets_of_user.build(params)"
WITHIN = "def make(params):\n    import nets_of_user\n    return nets_of_user.build(params)"


@pytest.mark.parametrize("code", [IMPORTED, WITHIN], ids=["above", "within"])
@pytest.mark.parametrize("edited", ["nets_of_user", "parts_of_user"])
def test_modules_of_the_users_own_count_by_their_text(
    code: str, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {"nets_of_user": "import parts_of_user\ndef build(params): return 3", "parts_of_user": "UNITS = 3"}
    words = []
    for again in ("", "", "# edited"):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text + (again if name == edited else ""))
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module("nets_of_user")
        space: dict[str, Any] = {}
        exec(code, space)
        words.append(fingerprint(replace(ASKED, model=None, make=space["make"]), OPTIONS, "8 1"))
    assert words[0] == words[1] != words[2]


def wired(skip: int = 0, factor: float = 2.0, turned: bool = False) -> Any:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    first = keras.layers.Dense(4)(x)
    second = keras.layers.Dense(4)(first)
    sums = keras.layers.Add()([second, (x, first)[skip]]) * factor
    ends = [keras.layers.Dense(1)(sums), keras.layers.Dense(1)(sums)]
    made = keras.Model(x, ends[::-1] if turned else ends)
    made.compile("sgd", ["mse", "mse"])
    return made


@pytest.mark.parametrize("other", [{"skip": 1}, {"factor": 3.0}, {"turned": True}], ids=["layers", "numbers", "ends"])
def test_how_layers_are_connected_counts(other: dict[str, Any]) -> None:
    known = fingerprint(replace(ASKED, model=wired()), OPTIONS, "8 1")
    assert fingerprint(replace(ASKED, model=wired()), OPTIONS, "8 1") == known
    assert fingerprint(replace(ASKED, model=wired(**other)), OPTIONS, "8 1") != known
