"""Which names a cell takes from the notebook."""

from __future__ import annotations

import numpy as np
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from tfos_magic.errors import CaptureError, UsageError
from tfos_magic.notebook.capture import Captured, capture, refuse_magics, refuse_undefined
from tfos_magic.notebook.names import analyse

READS = {
    "a name that is only read": ("print(a)", ("a",)),
    "built-in names do not count": ("print(len('x'), __name__)", ()),
    "a name defined before it is read": ("a = 1\nprint(a)", ()),
    "a name read before it is defined": ("print(a)\na = 1", ("a",)),
    "an augmented assignment": ("a += 1", ("a",)),
    "imports define": ("import numpy as np\nfrom keras import layers\nnp, layers", ()),
    "inside a function": ("def f(x):\n    return x + a", ("a",)),
    "a function's own names": ("def f(x):\n    y = x\n    return y", ()),
    "a function that uses what the cell defines later": ("def f():\n    return a\na = 1", ()),
    "a default value is read at once": ("def f(x=a):\n    return x", ("a",)),
    "a comprehension": ("[x * a for x in b]", ("b", "a")),
    "a lambda": ("f = lambda x: x + a", ("a",)),
    "a class body": (
        "class A(Base):\n    size = a\n    def f(self):\n        return self.size + b",
        ("Base", "a", "b"),
    ),
    "attributes are no names": ("import keras\nkeras.a.b", ()),
    "a loop defines its variable": ("for i in a:\n    i", ("a",)),
    "with defines its name": ("with open(a) as f:\n    f", ("a",)),
    "an except clause": ("try:\n    a\nexcept Exception as error:\n    error", ("a",)),
    "global in a function defines": ("def f():\n    global a\n    a = 1\nf()", ()),
    "an f-string": ("f'{a!r:>{b}}'", ("a", "b")),
    "each name once, in order": ("b + a + b", ("b", "a")),
    "a shell escape reads get_ipython": ("get_ipython().system('ls')", ("get_ipython",)),
}


@pytest.mark.parametrize("case", READS)
def test_the_reads_of_a_cell(case: str) -> None:
    source, expected = READS[case]
    assert analyse(source, "<cell>").reads == expected


def test_a_star_import_may_define_anything() -> None:
    assert analyse("from math import *\nsin(1)", "<cell>").open_ended
    assert not analyse("text = 'import *'", "<cell>").open_ended


@pytest.mark.parametrize("source", ["x = (1", "def f(:\n  pass", "  x = 1", "return 1", "await x", "x = '\x00'"])
def test_a_cell_that_is_no_python_is_refused_with_its_line(source: str) -> None:
    with pytest.raises(UsageError, match="not valid Python"):
        analyse(source, "<cell>")


def captured(source: str, namespace: dict[str, object]) -> Captured:
    return capture(analyse(source, "<cell>"), namespace, feeds={}, push=[])


def test_tfos_is_not_asked_of_a_notebook_that_has_no_such_name() -> None:
    assert captured("print(tfos.rank())", {}).values == ()
    with pytest.raises(CaptureError, match="reads the name 'tfso'"):
        captured("print(tfso.rank())", {})


def test_a_notebooks_own_tfos_goes_to_the_workers() -> None:
    import tfos_magic

    assert captured("print(tfos.rank())", {"tfos": tfos_magic}).modules == {"tfos": "tfos_magic"}
    assert captured("print(tfos)", {"tfos": 3}).values == ("tfos",)


def test_a_name_that_only_a_function_reads_is_told_of_and_one_that_is_read_at_once_refused() -> None:
    (hint,) = captured("def load(path):\n    return trimesh.load(path)\nx = 1", {"trimesh2": 1}).hints
    assert "A function or a branch of the cell reads the name 'trimesh', which the notebook does not have." in hint
    assert "Did you mean 'trimesh2'?" in hint
    for source in (
        "class A(Base):\n    def f(self): ...",
        "class A:\n    x = nowhere",
        "[nowhere(x) for x in range(3)]",
        "def f():\n    return nowhere\nprint(nowhere)",
    ):
        with pytest.raises(CaptureError, match="which the notebook does not have"):
            captured(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "for n in range(3):\n    if n == 0 or n < best:\n        best = n",
        "for n in range(3):\n    if n:\n        print(last)\n    last = n",
        "try:\n    device\nexcept NameError:\n    device = 'cpu'",
        "import sys\nbest = best if 'best' in sys.argv else 3",
        "def f():\n    global last\n    last = 1\nf()\nprint(last)",
        "n = 0\nwhile n < 3:\n    n += 1 if n == 0 else step\n    step = 1",
    ],
)
def test_a_name_that_the_cell_has_by_the_time_it_reads_it_is_not_asked_of_the_notebook(source: str) -> None:
    assert captured(source, {}).hints == []
    exec(source, {})


@pytest.mark.parametrize("source", ["n = n + 1", "print(n)\nfor n in range(3): ...", "if n > 3:\n    n = 3"])
def test_a_name_that_is_read_before_the_cell_has_it_in_any_case_is_refused(source: str) -> None:
    with pytest.raises(CaptureError, match="'n', which the notebook does not have"):
        captured(source, {})


def test_a_name_that_a_function_reads_and_sets_is_that_of_the_notebook() -> None:
    cell = "def count():\n    global n\n    n = n + 1\ncount()"
    assert captured(cell, {"n": 5}).values == ("n",)
    assert captured(cell, {}).hints == []


def test_a_name_that_only_a_branch_reads_is_told_of() -> None:
    (hint,) = captured("debug = False\nif debug:\n    print(nowhere)", {}).hints
    assert "A function or a branch of the cell reads the name 'nowhere'" in hint
    with pytest.raises(CaptureError, match="'nowhere', which the notebook does not have"):
        captured("for n in range(3):\n    print(nowhere)", {})


def test_a_name_that_exec_may_define_is_told_of() -> None:
    (hint,) = captured("exec('n = 1')\nprint(n)", {}).hints
    assert "The cell reads the name 'n', which the notebook does not have." in hint


def test_values_of_a_hundred_megabytes_draw_a_hint_that_names_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "print(table, label)"
    names = {"table": np.zeros(1000), "label": "digits"}
    assert captured(cell, names).hints == []
    monkeypatch.setattr("tfos_magic.notebook.capture.HINT_BYTES", 5000)
    (hint,) = captured(cell, names).hints
    assert "'table' the most" in hint
    assert "Spark DataFrame" in hint


@pytest.mark.parametrize(
    "source",
    [
        "model = 1",
        "def f():\n    global model\n    model = 1\nf()",
        "from helpers import *",
        "exec('model = 1')",
        "globals()['model'] = 1",
        "helper()",
    ],
)
def test_a_name_that_the_cell_may_define_can_be_asked_back(source: str) -> None:
    def helper() -> None:
        global model
        model = 1

    refuse_undefined(analyse(source, "<cell>"), {"helper": helper, "rows": []}, ["model", "rows"])


def test_a_name_asked_back_that_nobody_defines_is_refused_before_anything_starts() -> None:
    names = analyse("model = 1", "<cell>")
    with pytest.raises(CaptureError, match=r"asks for 'modl' back.* Did you mean 'model'"):
        refuse_undefined(names, {}, ["modl"])
    with pytest.raises(CaptureError, match="take it out of -o"):
        refuse_undefined(names, {}, ["history"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%time history = model.fit(x)", "Line 2 .* magic %time, .* write history = model.fit\\(x\\)"),
        ("hist = %time model.fit(x)", "Leave it out: write model.fit\\(x\\)"),
        ("%matplotlib inline", "figures that a cell draws are shown without it"),
        ("%pip install x", "magic %pip, .*Take it out"),
        ("%timeit -n1 model.fit(x)", "magic %timeit, .*Leave it out. How long"),
        ("!ls data", "a shell command, which only the notebook can run. Put it in a cell of its own"),
        ("files = !ls data", "a shell command"),
        ("shell = get_ipython()", "Line 2 of the cell is get_ipython"),
    ],
)
def test_what_only_the_notebook_can_run_is_refused_by_its_line_with_what_to_write(line: str, words: str) -> None:
    source = TransformerManager().transform_cell(f"x = 1\n{line}\ny = 2\n")
    with pytest.raises(UsageError, match=words):
        refuse_magics(analyse(source, "<cell>"), source)


def test_a_builtin_name_is_taken_where_the_notebook_has_another_thing_by_it() -> None:
    names = analyse("total = sum(rows)\nprint(max(rows))\ndef power(): return pow(2, 3)\nlen = 3", "<cell>")
    assert names.builtins == {"sum", "max", "pow", "print"}
    assert names.reads == ("rows",)
    namespace = {"sum": np.sum, "pow": lambda a, b: 42.0, "max": max, "len": 5, "rows": [1], "exit": None}
    assert sorted(capture(names, namespace, feeds={}, push=[]).values) == ["pow", "rows", "sum"]
