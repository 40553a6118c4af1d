"""The digest of rows: the same for the same rows however they come, another for others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tfos_magic.columns.digest import MODULUS, digest_of, joined

ROWS = 500


def batch() -> pa.RecordBatch:
    random = np.random.default_rng(4)
    lengths = random.integers(0, 6, ROWS)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(random.normal(size=int(lengths.sum())).astype(np.float32)))
    return pa.record_batch(
        {
            "label": pa.array(random.integers(0, 3, ROWS)),
            "lists": lists,
            "text": pa.array([b"row %d" % row for row in range(ROWS)], pa.binary()),
            "pair": pa.StructArray.from_arrays([pa.array(random.normal(size=ROWS)), lists], ["a", "b"]),
        }
    )


def rows_digest(rows: pa.RecordBatch) -> int:
    return digest_of(rows).content


def test_the_order_of_rows_and_how_they_are_cut_do_not_matter() -> None:
    rows, order = batch(), np.random.default_rng(1).permutation(ROWS)
    parts = [rows_digest(rows.slice(0, 3)), rows_digest(rows.slice(3, 0)), rows_digest(rows.slice(3))]
    assert rows_digest(rows) == rows_digest(rows.take(pa.array(order))) == sum(parts) % MODULUS


def test_the_digest_of_the_order_heeds_it_and_not_how_rows_are_cut() -> None:
    rows = batch()
    for cuts in ([0, 500], [0, 3, 3, 4, 256, 500], [*range(501)]):
        assert joined(digest_of(rows.slice(a, b - a)) for a, b in pairwise(cuts)) == digest_of(rows)
    for exchanged in ((3, 4), (0, 256), (0, 499)):
        order = np.arange(ROWS)
        order[[*exchanged]] = order[[*reversed(exchanged)]]
        other = digest_of(rows.take(pa.array(order)))
        assert other.content == digest_of(rows).content
        assert other.order != digest_of(rows).order


@pytest.mark.parametrize("column", ["label", "lists", "text", "pair"])
def test_values_that_change_places_are_told(column: str) -> None:
    rows = batch()
    order = np.arange(ROWS)
    order[[3, 4]] = [4, 3]
    at = rows.schema.get_field_index(column)
    others = rows.set_column(at, rows.schema.field(at), rows.column(at).take(pa.array(order)))
    assert not rows.column(at)[3].equals(rows.column(at)[4])
    assert rows_digest(others) != rows_digest(rows)


def test_one_more_row_and_one_other_value_are_told() -> None:
    rows = batch()
    label = np.asarray(rows.column(0)).copy()
    label[77] += 1
    assert len({rows_digest(rows), rows_digest(rows.slice(1)), rows_digest(rows.set_column(0, "label", label))}) == 3
