"""Splits of Parquet files: each row group is of one split, batches are bounded."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfos_magic.files.parquet import batch_rows, groups_between, open_parquet, read_groups

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    rows = np.arange(1000)
    table = pa.table({"id": rows, "wide": list(np.outer(rows, np.ones(50)).astype(np.float32)), "a.b": rows * 2})
    pq.write_table(table, path, row_group_size=100)
    return path


@pytest.mark.parametrize("length", [1, 100, 1000, 4096, 10**9])
def test_every_row_group_belongs_to_one_split_in_order(path: Path, length: int) -> None:
    size = path.stat().st_size
    with open_parquet(str(path)) as file:
        if length == 1:
            middles = [at for at in range(size) if groups_between(file.metadata, at, at + 1)]
            assert len(middles) == 10
        splits = [groups_between(file.metadata, at, at + length) for at in range(0, size, length)]
    assert [group for split in splits for group in split] == list(range(10))


def test_a_row_group_belongs_to_the_split_that_holds_its_middle(path: Path) -> None:
    with open_parquet(str(path)) as file:
        group = file.metadata.row_group(3)
        columns = [group.column(index) for index in range(group.num_columns)]
        start = min(columns[0].dictionary_page_offset, columns[0].data_page_offset)
        middle = start + sum(column.total_compressed_size for column in columns) // 2
        assert groups_between(file.metadata, middle, middle + 1) == [3]
        assert 3 not in groups_between(file.metadata, start, middle)


def test_batches_hold_the_named_columns_and_about_as_many_bytes_as_asked(path: Path) -> None:
    with open_parquet(str(path)) as file:
        batches = list(read_groups(file, [7, 2], ["a.b", "wide"], batch_bytes=5000))
        assert batch_rows(file.metadata.row_group(0), ["wide"], 5000) < 30
    assert batches[0].schema.names == ["a.b", "wide"]
    assert all(batch.nbytes < 8000 for batch in batches)
    rows = np.concatenate([batch["a.b"].to_numpy() for batch in batches])
    assert rows.tolist() == [*range(1400, 1600, 2), *range(400, 600, 2)]


def test_dictionaries_do_not_hide_how_large_rows_are(tmp_path: Path) -> None:
    zeros = pa.array([[0.0] * 1000] * 500)
    pq.write_table(pa.table({"zeros": zeros}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 100_000
    with open_parquet(str(tmp_path / "x.parquet")) as file:
        assert batch_rows(file.metadata.row_group(0), ["zeros"], 80_000) == 10


def test_files_elsewhere_are_read_through_their_file_system(path: Path) -> None:
    with fsspec.open("memory://bucket/x.parquet", "wb") as target:
        target.write(path.read_bytes())
    with open_parquet("memory://bucket/x.parquet", path.stat().st_size) as file:
        assert sum(batch.num_rows for batch in read_groups(file, [0, 9], ["id"])) == 200


def test_a_file_of_another_size_than_expected_is_not_read(path: Path) -> None:
    with pytest.raises(OSError, match="has been rewritten"), open_parquet(str(path), 17):
        pass
