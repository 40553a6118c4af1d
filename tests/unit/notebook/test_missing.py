"""What options say of missing values, and what is shown of columns."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tfos_magic.cluster.runs.state import FeedState
from tfos_magic.columns.missing import Missing, Rule
from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import Selection
from tfos_magic.errors import DataError, UsageError
from tfos_magic.notebook.capture import capture_cell
from tfos_magic.notebook.describe import describe_feeds, describe_plan, status_dict
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.options import parse
from tfos_magic.transport.messages import StrategyOptions


def missing(line: str) -> Missing:
    args = parse(TFOSMagics.tfos_train, line)
    return Missing.of(args.fill, args.pad, args.null_mask)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", Missing()),
        ("--fill 0", Missing(fills=(Rule("", "0"),))),
        ("--fill -1 --label y", Missing(fills=(Rule("", "-1"),))),
        ("--fill age=0 --fill 'no name'", Missing(fills=(Rule("age", "0"), Rule("", "no name")))),
        (
            "--fill 'name=a b=c' --fill note='' --fill t=\"x\"",
            Missing(fills=(Rule("name", "a b=c"), Rule("note", ""), Rule("t", "x"))),
        ),
        ("--pad=-1:20", Missing(pads=(Rule("", "-1", (20,)),))),
        ("--pad grid=0.5:3x4 --pad words=:7", Missing(pads=(Rule("grid", "0.5", (3, 4)), Rule("words", "", (7,))))),
        ("--pad at=12:30:5", Missing(pads=(Rule("at", "12:30", (5,)),))),
        ("--null-mask age,name", Missing(masks=("age", "name"))),
    ],
)
def test_options_say_what_missing_values_become(line: str, said: Missing) -> None:
    assert missing(line) == said


def test_a_call_says_the_same_with_mappings() -> None:
    made = Missing.of(fill={"age": 0, "name": b"?"}, pad={"x": "0:20"}, null_mask="age")
    assert made == missing("--fill age=0 --fill name=? --pad x=0:20 --null-mask age")
    assert Missing.of(fill=0.5, pad=0) == missing("--fill 0.5 --pad 0")
    with pytest.raises(DataError, match="length of 0"):
        Missing.of(pad="0:0")


@pytest.mark.parametrize("option", ["--fill 0", "--pad 0", "--null-mask x"])
def test_options_on_columns_without_a_dataframe_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match="the cell names none"):
        capture_cell("1 + 1", {}, parse(TFOSMagics.tfos_train, option))


def test_a_dry_run_names_the_masks_that_will_be_fed() -> None:
    plan = plan_feed(
        StructType().add("x", "float").add("y", "long"), Selection.of(label="y"), missing=missing("--null-mask x")
    )
    captured: Any = SimpleNamespace(
        values={},
        payload=b"",
        modules=(),
        hints=[],
        frames={"df": SimpleNamespace(plan=plan, selection=Selection(label="y"))},
    )
    options = StrategyOptions(compression="bfloat16")
    request: Any = SimpleNamespace(
        notices=(), strategy="sync", options=options, shuffle=True, batch_size=32, outputs=[], log_dir=""
    )
    said = describe_plan(request, captured, size=2, running=False)
    assert "2 workers, strategy sync, compression bfloat16." in said
    assert "x_mask bool" in said
    assert "y_mask" not in said


def test_the_status_shows_dtype_and_shape_of_every_column() -> None:
    feed = FeedState("train", 60_000, 188_400_000, 2.0, done=True, columns=("x float32 (rows, 784)", "y int64 (rows,)"))
    assert describe_feeds([feed]).splitlines() == [
        "DataFrame train: 60,000 rows, 188.4 MB were fed.",
        "  x float32 (rows, 784)",
        "  y int64 (rows,)",
    ]
    streamed = FeedState("large", done=True, streamed=True)
    assert describe_feeds([streamed]) == "DataFrame large: streamed anew in every epoch."
    told = status_dict(None, [feed], None)
    assert (told["phase"], told["feeds"][0]["columns"]) == ("none", list(feed.columns))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mlflow.autolog()", True),
        ("    mlflow.tensorflow.autolog(log_models=False)", True),
        ("with mlflow.start_run():\n    pass", True),
        ("# mlflow.autolog()", False),
        ("mlflow.set_tracking_uri('http://here')", False),
    ],
)
def test_a_cell_that_logs_in_mlflow_by_itself_is_told_that_each_worker_does(line: str, told: bool) -> None:
    cell = f"import mlflow\nif True:\n{line}" if line.startswith(" ") else f"import mlflow\n{line}"
    captured = capture_cell(cell, {}, parse(TFOSMagics.tfos_train, ""))
    assert [("--mlflow" in hint) for hint in captured.hints] == [True] * told
