"""The function that a ``%%tfos_map`` cell ends with, and the map of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tfos_magic.errors import UsageError
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.map_magic import function_of, map_cell, predict_line
from tfos_magic.notebook.options import parse

FRAME = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [1.0, 1.0, 1.0]})


def mapped(cell: str, line: str = "df", **names: Any) -> pd.DataFrame:
    return map_cell(cell, parse(TFOSMagics.tfos_map, line), {"df": FRAME, **names})


def test_an_expression_of_columns_is_a_function_of_them() -> None:
    assert mapped("{'z': x + 3}")["z"].tolist() == [3, 4, 5]
    assert mapped("import math\nshift = math.floor(3.5)\n{'z': x * shift + y}")["z"].tolist() == [1, 4, 7]


def test_the_last_function_of_the_cell_is_mapped_with_what_it_reads_of_the_notebook() -> None:
    cell = "def helper(a):\n    return a * factor\n\ndef score(x):\n    return {'z': helper(x)}\n"
    assert mapped(cell, factor=2.0)["z"].tolist() == [0, 2, 4]
    assert mapped("lambda y: {'z': y}")["z"].tolist() == [1, 1, 1]
    assert mapped("score", score=lambda x: {"z": -x})["z"].tolist() == [0, -1, -2]


def test_statements_before_the_expression_see_the_columns_too() -> None:
    cell = "import math\nz = x * math.sqrt(factor)\ndef twice(a):\n    return 2 * a\n{'z': twice(z) + y}"
    assert mapped(cell, factor=4.0)["z"].tolist() == [1, 5, 9]


def test_columns_go_before_names_of_the_notebook() -> None:
    assert mapped("{'z': x}", x="not this")["z"].tolist() == [0, 1, 2]


def test_the_notebooks_names_stay_as_they_were() -> None:
    namespace = {"factor": 2.0}
    function_of("factor = 5.0\n{'z': x * factor}", ["x"], namespace)
    assert namespace == {"factor": 2.0}


def test_options_say_rows_trim_select_and_the_block() -> None:
    assert list(mapped("{'z': x, 'w': y}", "df --trim").columns) == ["z", "w"]
    assert list(mapped("{'z': x, 'w': y}", "df --select w,x").columns) == ["w", "x"]
    assert mapped("import tensorflow as tf\n{'z': tf.fill(tf.shape(x), tf.size(x))}", "df --block-rows 2")[
        "z"
    ].tolist() == [2, 2, 1]
    assert mapped("import tensorflow as tf\n{'rank': tf.rank(x)}", "df --rows")["rank"].tolist() == [0, 0, 0]


def test_a_schema_is_given_in_quotes() -> None:
    assert parse(TFOSMagics.tfos_map, "df --schema 'z double, w int' --trim").schema == "z double, w int"


@pytest.mark.parametrize("line", ["--study 'my study' --label \"y\"", "--study=\"my study\" --label='y'"])
def test_quotes_hold_words_together_and_are_no_part_of_a_value(line: str) -> None:
    args = parse(
        TFOSMagics.tfos_sweep, f"--metric \"val_acc\" {line} --fill 'name=not known' --fill n='a b' -o \"study\""
    )
    assert (args.metric, args.study, args.label, args.output) == ("val_acc", "my study", "y", ["study"])
    assert args.fill == ["name=not known", "n=a b"]


@pytest.mark.parametrize(
    ("cell", "line", "message"),
    [
        ("{'z': x}", "", "needs the name of a DataFrame"),
        ("{'z': x}", "nope", "no name 'nope'"),
        ("", "df", "the cell is empty"),
        ("z = x + 3", "df", "ends with neither a function nor an expression"),
        ("{'z': 3}", "df", "names no column: the DataFrame has x, y"),
        ("{'z': x", "df", "not valid Python"),
        ("{'z': x}", "df --select q", "--select: there is no column 'q'"),
        ("{'x': x}", "df", "'x' is the name of a column"),
        ("from math import *\nw = x\n{'z': w}", "df", "import \\* only allowed at module level"),
        ("{'z': x}", "df --tirm", "Did you mean '--trim'"),
    ],
)
def test_what_cannot_be_mapped_is_told(cell: str, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mapped(cell, line)


def test_a_line_predicts_with_a_model_of_the_notebook_or_a_path(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.save(tmp_path / "m.keras")
    names = {"df": FRAME, "model": model}
    for given in ("model", str(tmp_path / "m.keras")):
        args = parse(TFOSMagics.tfos_predict, f"{given} df --features x,y --classes a,b --output kind -o made")
        expected = ["ab"[k] for k in model(FRAME.to_numpy()).numpy().argmax(axis=1)]
        assert predict_line(args, names)["kind"].tolist() == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model", "needs a model and a DataFrame"),
        ("model nope", "no name 'nope'"),
        ("nope df", "'nope' is neither a model in the notebook"),
    ],
)
def test_a_prediction_that_cannot_be_is_told(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict_line(parse(TFOSMagics.tfos_predict, line), {"df": FRAME, "model": None})
