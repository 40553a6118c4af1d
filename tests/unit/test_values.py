"""Values on their way to a cell take the text of the notebook's functions along."""

from __future__ import annotations

import inspect
import io
import linecache
from collections.abc import Iterator
from typing import Any

import pytest

from tfos_magic.values import cache_source, pack, unpack
from tfos_magic.values.pickler import Pickler, Unpickler

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
