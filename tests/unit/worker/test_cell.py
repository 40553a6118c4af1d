"""How a trainer tells what a cell raised."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfos_magic as tfos
from tfos_magic.transport.messages import RunCell
from tfos_magic.worker.cell import describe_error


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_error_that_cannot_tell_itself_is_told_by_its_kind() -> None:
    described = describe_error(Mute(), RunCell("run", "raise Mute()", "<cell>", "sync", 0, []))
    assert described["kind"] == "Mute"
    assert described["message"] == "(its text cannot be shown: RuntimeError)"


def test_what_is_wrong_with_rows_of_a_pipeline_is_told_as_the_error_that_it_is(tmp_path: Path) -> None:
    for number, values in enumerate(([1] * 8, [2, None])):
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), tmp_path / f"{number}.parquet")
    with pytest.raises(tf.errors.OpError) as raised:
        list(tfos.dataset(str(tmp_path), batch_size=2, shuffle=False).map(lambda columns: columns["x"] + 1))
    described = describe_error(raised.value, RunCell("run", "for x in data: pass", "<cell>", "sync", 0, []))
    assert described["kind"] == "DataError"
    assert described["message"].startswith(f"{tmp_path}/1.parquet: column 'x' has nulls")
    assert described["message"].count("1.parquet") == 1
    assert "Traceback" not in described["message"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("Exception in call().\n\n\x1b[1m-1\x1b[0m\n"), "Exception in call().\n\n-1\n"),
        (KeyError("name"), "'name'"),
        (ValueError("\x1b[31mred\x1b[0m"), "red"),
    ],
)
def test_a_message_has_its_lines_and_no_colours(error: Exception, message: str) -> None:
    assert describe_error(error, RunCell("run", "raise", "<cell>", "sync", 0, []))["message"] == message


def test_who_asks_where_nobody_is_told_where_to_ask() -> None:
    with pytest.raises(EOFError) as raised:
        raise EOFError("EOF when reading a line")
    message = describe_error(raised.value, RunCell("run", "input()", "<cell>", "sync", 0, []))["message"]
    assert "ask in another cell of the notebook" in message
