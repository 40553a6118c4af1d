"""Values on their way to a cell take the text of the notebook's functions along."""

from __future__ import annotations

import inspect
import io
import linecache
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tfos_magic.values import cache_source, pack, tensors, unpack
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.unpickler import Unpickler

pytestmark = pytest.mark.slow

CELL = "def outer():\n    def inner(x):\n        return 2 * x\n    return inner\nfunction = outer()\n"
NAME = "<a cell of the notebook>"


@pytest.fixture
def function() -> Iterator[Any]:
    """As IPython makes it: compiled from text that is in no file."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cache_source(NAME, CELL)
    exec(compile(CELL, NAME, "exec"), namespace)
    yield namespace["function"]
    linecache.cache.pop(NAME, None)


def test_a_function_has_its_text_where_it_arrives_however_deep_it_lies(function: Any) -> None:
    payload = pack({"held": [{"by": function}], "other": 1})
    linecache.cache.pop(NAME)
    values = unpack(payload)
    arrived = values["held"][0]["by"]
    assert (arrived(4), values["other"]) == (8, 1)
    assert inspect.getsource(arrived) == "    def inner(x):\n        return 2 * x\n"


def test_without_functions_of_a_notebook_nothing_is_added(function: Any) -> None:
    assert unpack(b"") == {}
    text = b"return 2 * x"
    assert text not in pack({"f": _of_a_file}), "what has a file needs no text"
    assert text in pack({"function": function})


def _of_a_file(x: int) -> int:
    return 2 * x


def test_a_class_that_comes_back_to_where_it_was_defined_stays_as_it_is() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "scale": 2}
    exec("class Own:\n    def scaled(self):\n        return scale\n", namespace)
    own, file = namespace["Own"], io.BytesIO()
    scaled = own.scaled
    Pickler(file).dump_all(own())
    back = Unpickler(io.BytesIO(file.getvalue()), keeps=True).load_all()
    assert type(back) is own
    assert own.scaled is scaled


class _Main:
    """A main module, in which code runs and from which values are sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        self.names = ModuleType("__main__").__dict__
        self._patch = monkeypatch
        self.run(code)

    def run(self, code: str) -> None:
        exec(code, self.names)

    def send(self, other: _Main, *names: str, set_anew: set[str] | None = None, keeps: bool = False) -> None:
        module = ModuleType("__main__")
        self._patch.setitem(sys.modules, "__main__", module)
        file = io.BytesIO()
        pickler = Pickler(file, set_anew=set_anew or set())
        pickler.globals_ref[id(self.names)] = pickler.globals_ref.pop(id(module.__dict__))
        pickler.dump_all({name: self.names[name] for name in names})
        read = Unpickler(io.BytesIO(file.getvalue()), keeps=keeps, main=other.names)
        other.names.update(read.load_all())


NOTEBOOK = """
rate, count, unused = 0.5, 0, [1]
def show():
    return rate, globals().get("late")
def add():
    global count
    count += 1
class Counts:
    def once(self):
        return count + later()
"""


def test_functions_of_the_notebook_see_what_the_cell_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, NOTEBOOK), _Main(monkeypatch, "")
    notebook.send(cell, "show", "add", "Counts")
    assert "unused" not in cell.names
    cell.run("rate, late = 0.03, 'now'\nadd()\nadd()\nseen = show(), count\nlater = lambda: 10\nonce = Counts().once()")
    assert cell.names["seen"] == ((0.03, "now"), 2)
    assert cell.names["once"] == 12
    assert notebook.names["show"]() == (0.5, None)


def test_functions_that_come_back_see_the_notebooks_names(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, "rate, scale = 0.5, 3"), _Main(monkeypatch, "rate, scale = 0.5, 3")
    cell.run("rate = 0.03\nhelper = lambda: 7\ndef made(): return rate, scale, helper()")
    notebook.run("scale = 4")
    cell.send(notebook, "made", set_anew={"rate", "helper"}, keeps=True)
    assert notebook.names["made"]() == (0.03, 4, 7)
    notebook.run("rate, helper = 1.0, lambda: 8")
    assert notebook.names["made"]() == (1.0, 4, 8)


def test_functions_of_other_namespaces_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, "rate = 1"), _Main(monkeypatch, "rate = 2")
    notebook.run(
        "other = {'rate': 5, '__name__': '__main__'}\nexec('def own(): return rate', other)\nown = other['own']"
    )
    notebook.send(cell, "own")
    assert cell.names["own"]() == 5


def test_a_class_that_stays_gets_the_values_it_was_given_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = _Main(
        monkeypatch, "class Settings:\n    rate, seen = 0.5, []\n    def double(self): return 2 * self.rate\n"
    )
    cell = _Main(monkeypatch, "")
    notebook.send(cell, "Settings")
    settings, double = notebook.names["Settings"], notebook.names["Settings"].double
    cell.names["Settings"].rate = 0.02
    cell.names["Settings"].seen.append(1)
    cell.run("Settings.triple = lambda self: 3 * self.rate\nSettings.late = 4")
    cell.send(notebook, "Settings", keeps=True)
    assert (settings.rate, settings.seen, settings.double, settings.late) == (0.02, [1], double, 4)
    assert settings().triple() == 0.06
    cell.run("Settings.double = lambda self: 0")
    cell.send(notebook, "Settings", keeps=True)
    assert settings().double() == 0


def test_a_class_that_stays_gets_lists_of_what_cannot_be_compared() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Runs:\n    made = [lambda: 5]\n", namespace)
    runs, file = namespace["Runs"], io.BytesIO()
    Pickler(file).dump_all(runs())
    runs.made = []
    assert type(Unpickler(io.BytesIO(file.getvalue()), keeps=True).load_all()) is runs
    assert [made() for made in runs.made] == [5]


SLOTTED = """
import sys
from tfos_magic.values.pickler import Pickler
from tfos_magic.values.unpickler import Unpickler

there = Unpickler(sys.stdin.buffer, main=globals()).load_all()
there.rate, there.points = 0.5, [3]
Pickler(sys.stdout.buffer).dump_all(there)
"""


def test_an_object_with_slots_comes_back_as_it_is_elsewhere() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass Settings:\n    rate: float\n    points: list\n",
        namespace,
    )
    made, file = namespace["Settings"](0.1, []), io.BytesIO()
    Pickler(file).dump_all(made)
    code = [sys.executable, "-c", SLOTTED]
    there = subprocess.run(code, input=file.getvalue(), stdout=subprocess.PIPE, check=True, timeout=60).stdout
    back = Unpickler(io.BytesIO(there), keeps=True, main=namespace).load_all()
    assert type(back) is type(made)
    assert back == namespace["Settings"](0.5, [3])


def test_a_function_with_a_cache_goes_without_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, ""), _Main(monkeypatch, "")
    notebook.run(
        "import functools\n@functools.lru_cache(maxsize=3)\ndef held(n): return n * factor\nfactor = 2\nheld(1)"
    )
    notebook.send(cell, "held")
    cell.run("factor = 5")
    assert (cell.names["held"](1), cell.names["held"].cache_parameters()["maxsize"]) == (5, 3)


OF_A_PROPERTY = """
import functools
class Table:
    rows = 4
    @functools.cached_property
    def size(self):
        return self.rows * factor
factor, table, other = 3, Table(), Table()
table.size
"""


def test_a_class_with_a_cached_property_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, ""), _Main(monkeypatch, "")
    notebook.run(OF_A_PROPERTY)
    notebook.send(cell, "table", "other")
    cell.run("factor = 5")
    assert (cell.names["table"].size, cell.names["other"].size) == (12, 20)


COUNTER = """
def counter():
    count = 0
    def add():
        nonlocal count
        count += 1
        return again() if count < 2 else count
    def again():
        return add()
    return add, lambda: count
add, count = counter()
"""


def test_functions_that_share_a_variable_of_a_closure_share_it_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, cell = _Main(monkeypatch, COUNTER), _Main(monkeypatch, "")
    notebook.send(cell, "add", "count")
    cell.run("add()\nadd()\nseen = count()")
    assert cell.names["seen"] == 3
    assert notebook.names["count"]() == 0
    cell.send(notebook, "add", "count", keeps=True)
    notebook.run("add()\nseen = count()")
    assert notebook.names["seen"] == 4


COUNTED = """
def counted():
    count = 0
    class Counts:
        def add(self):
            nonlocal count
            count += 1
    return Counts(), lambda: count
counts, count = counted()
"""


def test_a_class_that_stays_shares_the_variables_of_its_closure_with_what_comes_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook, cell = _Main(monkeypatch, COUNTED), _Main(monkeypatch, "")
    kind = type(notebook.names["counts"])
    notebook.send(cell, "counts", "count")
    cell.run("counts.add()\nseen = count()")
    assert cell.names["seen"] == 1
    cell.send(notebook, "counts", "count", keeps=True)
    notebook.run("counts.add()\nseen = count()")
    assert type(notebook.names["counts"]) is kind
    assert notebook.names["seen"] == 2


def test_a_layer_without_a_vocabulary_is_adapted_where_it_arrives() -> None:
    import keras

    packed = pack({"lookup": keras.layers.StringLookup(), "text": keras.layers.TextVectorization()})
    again = unpack(pack(unpack(packed)))
    again["lookup"].adapt(["b", "a", "b"])
    again["text"].adapt(["x y", "y"])
    assert again["lookup"].get_vocabulary() == ["[UNK]", "b", "a"]
    assert again["text"](["y x"]).numpy().tolist() == [[2, 3]]


@pytest.mark.parametrize("method", ["evaluate", "predict", "fit"])
def test_a_model_that_xla_compiled_travels_without_what_it_compiled(method: str) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    x = np.ones((4, 3), "float32")
    getattr(model, method)(*([x] if method == "predict" else [x, x[:, :1]]), verbose=0)
    again = unpack(pack(unpack(pack({"model": model}))))["model"]
    assert again.jit_compile
    assert np.array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_class_that_its_base_has_in_a_register_already_comes_through() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        """
known = {}
class Base:
    def __init_subclass__(cls, **options):
        if cls.__name__ in known:
            raise ValueError("already there: " + cls.__name__)
        known[cls.__name__] = cls
class Child(Base):
    def double(self, x):
        return 2 * x
""",
        names,
    )
    packed = pack({"child": names["Child"]()})
    code = f"from tfos_magic.values import unpack; print(unpack({packed!r})['child'].double(4))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "8\n", done.stderr


def test_an_optimizer_that_holds_a_list_of_others_travels_with_them() -> None:
    import keras
    import numpy as np

    class Several(keras.optimizers.Optimizer):
        def __init__(self, parts: list[Any]) -> None:
            super().__init__(learning_rate=1.0)
            self.parts = parts

        def build(self, variables: list[Any]) -> None:
            super().build(variables)
            for part in self.parts:
                part.build(variables)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(Several([keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1)]), "mse")
    model.optimizer.build(model.trainable_variables)
    again = unpack(pack({"model": model}))["model"]
    assert [len(part.variables) for part in again.optimizer.parts] == [
        len(part.variables) for part in model.optimizer.parts
    ]
    again.optimizer.parts[0].apply([np.ones(v.shape, "float32") for v in again.trainable_variables])
    assert int(again.optimizer.parts[0].iterations) == 1


KERAS_2 = """
import sys
import numpy as np
import tf_keras as keras
from tfos_magic.values import pack, unpack

class Scale(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")
    def call(self, inputs):
        return inputs * self.scale

def squares(y, predictions):
    return keras.backend.mean(keras.backend.square(y - predictions))

def doubled(x):
    return 2 * x

class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.parts = [Scale(), keras.layers.Dense(1, activation=doubled)]
    def call(self, inputs):
        for part in self.parts:
            inputs = part(inputs)
        return inputs

x = np.ones((8, 3), "float32")
models = {"own": Own(), "sequential": keras.Sequential([Scale(), keras.layers.Dense(1)])}
for model in models.values():
    model.compile("adam", squares)
    model.fit(x, x[:, :1], verbose=0)
packed = pack(models)
for name in ("Scale", "squares", "doubled", "Own"):
    del globals()[name]
again = unpack(packed)
assert all(np.array_equal(again[n].predict(x, verbose=0), m.predict(x, verbose=0)) for n, m in models.items())
assert again["own"].evaluate(x, x[:, :1], verbose=0) >= 0
print("equal")
"""


@pytest.mark.soak
def test_models_of_tf_keras_travel_with_what_of_the_notebook_they_are_made_of() -> None:
    pytest.importorskip("tf_keras")
    done = subprocess.run([sys.executable, "-c", KERAS_2], capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout.endswith("equal\n"), done.stderr[-3000:]


def test_the_constraint_of_a_variable_travels_and_is_no_other_option(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import tensorflow as tf\nv = tf.Variable([0.5], constraint=lambda t: tf.clip_by_value(t, 0.0, 1.0))\n"
    notebook, cell = _Main(monkeypatch, code), _Main(monkeypatch, "")
    notebook.send(cell, "v")
    cell.run("v.assign(v.constraint(v + 4.0))")
    original, elsewhere = notebook.names["v"], cell.names["v"]
    assert original is not elsewhere
    assert tensors.assigned(original, elsewhere.numpy(), tensors.options_of(elsewhere))
    assert original.numpy().tolist() == [1.0]
