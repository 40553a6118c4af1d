"""Files read in place: every row once, the same steps on every rank, batches as they are promised."""

from __future__ import annotations

import gzip
import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfos_magic as tfos
from tfos_magic.errors import DataError
from tfos_magic.files import csv, tfrecord_units
from tfos_magic.files.file_sharding import in_runs, unit_order
from tfos_magic.files.opening import open_source
from tfos_magic.tfrecord.writing import new_job
from tfos_magic.training import ranks
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import RunContext, StopSignal
from tfos_magic.training.inputs.marks import is_sharded

pytestmark = pytest.mark.slow

ROWS = 103
BATCH = 10
FORMATS = ("parquet", "tfrecord", "csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in all formats, in files of uneven sizes; one has no rows."""
    path = tmp_path_factory.mktemp("files")
    for kind in FORMATS:
        (path / kind).mkdir()
    for number, ids in enumerate(np.split(np.arange(ROWS), [40, 41, 41, 90])):
        rows = pa.table({"id": ids, "half": ids / 2, "word": [f"row {number}" for number in ids]})
        pq.write_table(rows, path / "parquet" / f"part-{number}.parquet", row_group_size=7)
        pc.write_csv(rows, path / "csv" / f"part-{number}.csv")
        with tf.io.TFRecordWriter(str(path / "tfrecord" / f"part-{number}.tfrecord")) as writer:
            for row in rows.to_pylist():
                writer.write(example(row))
    return path


def example(row: dict[str, Any]) -> bytes:
    features = {
        "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[row["id"]])),
        "half": tf.train.Feature(float_list=tf.train.FloatList(value=[row["half"]])),
        "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[row["word"].encode()])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def on_rank(rank: int, world: int, *arguments: Any, **options: Any) -> tf.data.Dataset:
    """The dataset as that rank of a run makes it, in which ranks do not meet."""
    collectives = Collectives(rank, world)
    context = RunContext("run", collectives, lambda _: None, StopSignal(), strategy="none", seed=3)
    with ExitStack() as stack:
        stack.callback(collectives.close)
        stack.enter_context(ranks.current(context))
        return tfos.dataset(*arguments, **options)


def ids_by_step(datasets: list[tf.data.Dataset]) -> list[list[int]]:
    """The ids of each global batch of one epoch, rank after rank."""
    epochs = [[batch["id"].tolist() for batch in each.as_numpy_iterator()] for each in datasets]
    assert {len(epoch) for epoch in epochs} == {len(datasets[0])}
    return [list(itertools.chain(*step)) for step in zip(*epochs, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", FORMATS)
def test_in_order_every_global_batch_is_that_of_one_plain_process(folder: Path, kind: str, world: int) -> None:
    datasets = [
        on_rank(rank, world, str(folder / kind), kind, batch_size=BATCH, shuffle=False) for rank in range(world)
    ]
    assert ids_by_step(datasets) == [list(range(at, min(at + BATCH, ROWS))) for at in range(0, ROWS, BATCH)]
    assert all(is_sharded(each) for each in datasets)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", FORMATS)
def test_shuffled_every_row_comes_once_in_an_epoch_and_each_epoch_differs(folder: Path, kind: str, world: int) -> None:
    datasets = [on_rank(rank, world, str(folder / kind), kind, batch_size=BATCH) for rank in range(world)]
    first, second = ids_by_step(datasets), ids_by_step(datasets)
    assert [len(step) for step in first] == [BATCH] * 10 + [3]
    assert sorted(itertools.chain(*first)) == list(range(ROWS)) == sorted(itertools.chain(*second))
    assert first != second
    again = [on_rank(rank, world, str(folder / kind), kind, batch_size=BATCH) for rank in range(world)]
    assert ids_by_step(again) == first
    other = [on_rank(rank, world, str(folder / kind), kind, batch_size=BATCH, seed=4) for rank in range(world)]
    assert ids_by_step(other) != first


def test_shuffled_a_rank_opens_only_the_row_groups_of_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfos_magic.files import parquet_source

    world = 3
    datasets = [on_rank(rank, world, str(folder / "parquet"), batch_size=BATCH) for rank in range(world)]
    read: list[tuple[str, int]] = []
    real = parquet_source.read_groups

    def noted(file: Any, groups: list[int], *rest: Any) -> Iterator[pa.RecordBatch]:
        read.extend((str(file.metadata.row_group(group).to_dict()), group) for group in groups)
        return real(file, groups, *rest)

    monkeypatch.setattr(parquet_source, "read_groups", noted)
    ids_by_step(datasets)
    assert len(set(read)) == 16
    assert 16 <= len(read) <= 16 + world - 1


def test_elements_are_those_of_a_fed_dataframe(folder: Path) -> None:
    one = tfos.dataset(str(folder / "parquet" / "*.parquet"), batch_size=ROWS, features=["half"], label="id")
    ((half, number),) = one.as_numpy_iterator()
    np.testing.assert_array_equal(half, number / 2)
    two = tfos.dataset(str(folder / "parquet"), batch_size=ROWS, features=["word", "half"], label="id")
    assert list(two.element_spec[0]) == ["word", "half"]
    assert two.element_spec[0]["word"] == tf.TensorSpec([ROWS], tf.string)
    ((features, number),) = two.as_numpy_iterator()
    assert features["word"].tolist() == [f"row {each}".encode() for each in number]


def test_lists_and_small_types_keep_their_shapes_and_dtypes(tmp_path: Path) -> None:
    pixels = np.arange(60, dtype=np.uint8)
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels), 6)
    words = pa.array([["a"] * (1 + number % 3) for number in range(10)])
    day = pa.array(np.arange(10, dtype=np.int32)).cast(pa.date32())
    pq.write_table(pa.table({"image": images, "words": words, "day": day}), tmp_path / "a.parquet")
    (batch,) = tfos.dataset(str(tmp_path), batch_size=10, shuffle=False).as_numpy_iterator()
    assert batch["image"].dtype == np.uint8
    np.testing.assert_array_equal(batch["image"], pixels.reshape(10, 6))
    assert [len(row) for row in batch["words"]] == [1 + number % 3 for number in range(10)]
    assert batch["day"].tolist() == list(range(10))


def test_compressed_files_and_given_types(folder: Path, tmp_path: Path) -> None:
    for kind in ("tfrecord", "csv"):
        for number in range(5):
            plain = folder / kind / f"part-{number}.{kind}"
            (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        types = {"id": "int64", "half": "float", "word": "string"}
        found = tfos.dataset(str(tmp_path / f"*.{kind}.gz"), kind, batch_size=ROWS, schema=types, shuffle=False)
        (batch,) = found.as_numpy_iterator()
        assert batch["id"].tolist() == list(range(ROWS))
        assert batch["half"].dtype == np.float32


@pytest.fixture(scope="module")
def parted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in all formats, in folders of two levels: ``part`` is in the files too, and has other values there."""
    path = tmp_path_factory.mktemp("parted")
    for kind in FORMATS:
        for number, place in enumerate(("day=2024-01-0", "day=2024-01-1", "day=__HIVE_DEFAULT_PARTITION__")):
            for name in ("a%2Fb", "c"):
                below = path / kind / (f"{place}{1 + number}" if number < 2 else place) / f"word={name}"
                below.mkdir(parents=True)
                source = folder / kind / f"part-{[0, 3, 4, 1, 1, 1][2 * number + (name == 'c')]}.{kind}"
                (below / source.name).write_bytes(source.read_bytes())
    return path


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("kind", FORMATS)
def test_folders_are_columns_and_win_over_those_of_the_files(parted: Path, kind: str, world: int) -> None:
    path, places = str(parted / kind), [(19723, b"a/b", 40), (19723, b"c", 49), (19734, b"a/b", 13), (19734, b"c", 1)]
    places += [(-1, b"a/b", 1), (-1, b"c", 1)]
    expected = [[day, word] for day, word, rows in places for _ in range(rows)]
    for names in (None, ["day", "word"]):
        how: dict[str, Any] = {"batch_size": 8, "shuffle": False, "fill": "day=-1", "features": names}
        datasets = [on_rank(rank, world, path, kind, **how) for rank in range(world)]
        assert set(datasets[0].element_spec) == ({"id", "half", "word", "day"} if names is None else set(names))
        steps = zip(*(each.as_numpy_iterator() for each in datasets), strict=True)
        rows = [
            [int(day), word]
            for step in steps
            for part in step
            for day, word in zip(part["day"], part["word"], strict=True)
        ]
        assert rows == expected
    how = {"batch_size": 8, "features": ["id"], "label": "day", "fill": "day=-1"}
    shuffled = [on_rank(rank, world, path, kind, **how) for rank in range(world)]
    pairs = [pair for each in shuffled for x, y in each.as_numpy_iterator() for pair in zip(x, y, strict=True)]
    assert len(pairs) == len(expected)
    assert {day for number, day in pairs if 0 < number < 40} == {19723}


def test_a_null_of_a_folder_is_an_error_where_no_value_is_given_for_it(parted: Path) -> None:
    with pytest.raises((DataError, tf.errors.OpError), match="'day' has nulls"):
        list(tfos.dataset(str(parted / "parquet"), batch_size=200))


def test_given_types_count_for_folders_and_others_are_refused(tmp_path: Path) -> None:
    for name in ("007", "x"):
        (tmp_path / f"p={name}").mkdir()
        (tmp_path / f"p={name}" / "a.csv").write_text("v\n1\n")
    with pytest.raises(DataError, match=r"p=x, which cannot be read as int32: declare 'p' as string"):
        tfos.dataset(str(tmp_path), "csv", batch_size=2, schema={"p": "int32"})
    (batch,) = tfos.dataset(f"{tmp_path}", "csv", batch_size=2, shuffle=False).as_numpy_iterator()
    assert batch["p"].tolist() == [b"007", b"x"]
    (tmp_path / "p=x").rename(tmp_path / "p=8")
    for schema, values in ((None, [7, 8]), ({"p": "string"}, [b"007", b"8"]), ({"p": "float"}, [7.0, 8.0])):
        (batch,) = tfos.dataset(str(tmp_path), "csv", batch_size=2, shuffle=False, schema=schema).as_numpy_iterator()
        assert batch["p"].tolist() == values
    (tmp_path / "q=1").mkdir()
    (tmp_path / "q=1" / "a.csv").write_text("v\n1\n")
    with pytest.raises(DataError, match=r"lies in folders of \['p'\] and .* of \['q'\]"):
        tfos.dataset(str(tmp_path), "csv", batch_size=2)


KINDS = {"parquet": ["a.parquet", "b"], "tfrecord": ["a.tfrecords", "b.TFRecord-00001-of-00002", "c.tfrecord.gz"]}
KINDS["csv"] = ["a.csv", "b.csv.gz"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_that_is_not_given_is_that_of_the_names(folder: Path, tmp_path: Path, kind: str) -> None:
    whole = (folder / kind / f"part-3.{kind}").read_bytes()
    for name in KINDS[kind]:
        (tmp_path / name).write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
    found = tfos.dataset(str(tmp_path), batch_size=49, shuffle=False)
    assert [batch["id"].tolist() for batch in found.as_numpy_iterator()] == [list(range(41, 90))] * len(KINDS[kind])
    if kind == "parquet":
        (tmp_path / "a.parquet").unlink()
        assert len(tfos.dataset(str(tmp_path), batch_size=49)) == 1


def test_formats_that_differ_or_cannot_be_told_are_asked_for(folder: Path, tmp_path: Path) -> None:
    for kind in FORMATS:
        (tmp_path / f"{kind}-0").write_bytes((folder / kind / f"part-0.{kind}").read_bytes())
    told = r"csv-0 is not a Parquet file, and its name suggests no other.*: say format='parquet' or .* format='csv'"
    with pytest.raises(DataError, match=told):
        tfos.dataset(str(tmp_path / "csv-0"), batch_size=2)
    (tmp_path / "more.csv").write_text("id\n1\n")
    told = r"several formats.*more\.csv of format 'csv' and .*parquet-0 of format 'parquet'"
    with pytest.raises(DataError, match=told):
        tfos.dataset([str(tmp_path / name) for name in ("more.csv", "parquet-0")], batch_size=2)


def test_what_is_wrong_with_files_is_told_with_their_names(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing-here"):
        tfos.dataset(str(folder / "nothing-here*"), batch_size=1)
    with pytest.raises(DataError, match=r"'orc' is unknown.*'parquet'"):
        tfos.dataset(str(folder), "orc", batch_size=1)
    with pytest.raises(DataError, match=r"no column 'haft'.*Did you mean 'half'"):
        tfos.dataset(str(folder / "parquet"), batch_size=1, features=["haft"])
    with pytest.raises(DataError, match=r"part-0\.csv cannot be read as Parquet"):
        tfos.dataset(str(folder / "csv"), "parquet", batch_size=1)
    with pytest.raises(DataError, match="no option 'delimiter'"):
        tfos.dataset(str(folder / "parquet"), batch_size=1, delimiter=";")


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"y": [1]}, r"b\.{kind} has no column 'x'.*a\.{kind}"),
        ({"x": ["one"]}, r"'x' is string in .*b\.{kind} and int64 in .*a\.{kind}"),
        ({"x": [1], "y": [1]}, r"b\.{kind} has a column 'y', which .*a\.{kind} has not: name the columns"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_that_do_not_go_together_are_named_when_the_dataset_is_made(
    tmp_path: Path, kind: str, second: dict[str, Any], told: str
) -> None:
    for name, rows in (("a", {"w": [0.5, 1], "x": [1, 2]}), ("b", {"w": [2.0] * 1, **second})):
        write = pq.write_table if kind == "parquet" else pc.write_csv
        write(pa.table(rows), tmp_path / f"{name}.{kind}")
    with pytest.raises(DataError, match=told.format(kind=kind)):
        tfos.dataset(str(tmp_path), kind, batch_size=2)
    assert len(list(tfos.dataset(str(tmp_path), kind, batch_size=2, features=["w"]))) == 2


def test_records_that_do_not_go_together_are_named_when_the_dataset_is_made(tmp_path: Path) -> None:
    kinds = {"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
    kinds["b"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"one"]))
    for name, feature in kinds.items():
        record = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord")) as writer:
            writer.write(record)
    with pytest.raises(DataError, match=r"b\.tfrecord.*'x' holds int64 values in some records and bytes in others"):
        tfos.dataset(str(tmp_path), "tfrecord", batch_size=2)


@pytest.mark.parametrize("first", ["x,y\n", "x,y\n,0\n,1\n"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_csv_file_without_values_takes_types_from_the_next(tmp_path: Path, first: str, shuffle: bool) -> None:
    (tmp_path / "a.csv").write_text(first)
    (tmp_path / "b.csv").write_text("x,y\n1.5,0\n2,1\n")
    made = tfos.dataset(str(tmp_path), batch_size=9, features=["x"], fill={"x": -1}, shuffle=shuffle)
    (batch,) = made.as_numpy_iterator()
    assert sorted(batch["x"].tolist()) == [-1.0] * (2 if ",0" in first else 0) + [1.5, 2.0]


def test_a_csv_column_without_any_value_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n,0\n")
    with pytest.raises(DataError, match=r"column 'x' has no value that shows its type: .*schema={'x': 'double'}"):
        tfos.dataset(str(tmp_path), batch_size=2)
    made = tfos.dataset(str(tmp_path), batch_size=2, schema={"x": "double"}, fill={"x": 7.0})
    (batch,) = made.as_numpy_iterator()
    assert batch["x"].tolist() == [7.0]


def test_a_name_that_comes_twice_in_a_csv_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    (tmp_path / "b.csv").write_text("x,x,y\n1,2,0\n")
    for path in (tmp_path / "b.csv", tmp_path):
        with pytest.raises(DataError, match=r"b\.csv has several columns of the name 'x': rename all but one"):
            tfos.dataset(str(path), "csv", batch_size=2, features=["x"], label="y")


@pytest.mark.parametrize("head", [",_c0,y", ",,y"])
def test_a_column_without_a_name_takes_no_others(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.csv").write_text(f"{head}\n1,2,0\n")
    with pytest.raises(DataError, match=r"a\.csv has several columns of the name '_c0': rename all but one"):
        tfos.dataset(str(tmp_path), batch_size=2)


def test_the_index_that_pandas_writes_is_a_column_called_as_spark_calls_it(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.5, 2.5], "y": [0, 1]}).to_csv(tmp_path / "a.csv")
    pd.DataFrame({"a": [3.5], "y": [1]}, index=[2]).to_csv(tmp_path / "b.csv")
    (batch,) = tfos.dataset(str(tmp_path), batch_size=9, shuffle=False).as_numpy_iterator()
    assert {name: values.tolist() for name, values in batch.items()} == {
        "_c0": [0, 1, 2],
        "a": [1.5, 2.5, 3.5],
        "y": [0, 1, 1],
    }
    (pair,) = tfos.dataset(str(tmp_path), batch_size=9, shuffle=False, features=["_c0"], label="y").as_numpy_iterator()
    assert [values.tolist() for values in pair] == [[0, 1, 2], [0, 1, 1]]


def test_what_a_csv_file_must_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y")
    with pytest.raises(DataError, match=r"a line of names, which ends in a line break"):
        tfos.dataset(str(tmp_path), batch_size=2)
    (tmp_path / "a.csv").write_text("x||y\n1||2\n")
    with pytest.raises(DataError, match=r"delimiter='\|\|': values of a CSV file are parted by one character"):
        tfos.dataset(str(tmp_path), batch_size=2, delimiter="||")
    with pytest.raises(DataError, match=r"the type 'int', which Arrow does not know\. Names of types are .*int32"):
        tfos.dataset(str(tmp_path), batch_size=2, schema={"x": "int"})


def test_nulls_of_a_csv_file_are_those_that_spark_reads(tmp_path: Path) -> None:
    """Empty values are, quoted or not; ``NA`` and ``null`` are words, ``NaN`` is a number."""
    path = tmp_path / "rows.csv"
    path.write_text('name,x,word,n\nann,1.5,NA,"7"\n,,null,""\n"",NaN,none,8\n')
    with pytest.raises(DataError, match=r"column 'name' has nulls"):
        list(tfos.dataset(str(path), batch_size=3, shuffle=False, features=["name"]))
    fill = {"name": "nobody", "x": -1.0, "n": 0}
    filled = tfos.dataset(str(path), batch_size=3, shuffle=False, fill=fill, null_mask=["name"])
    (batch,) = filled.as_numpy_iterator()
    assert batch["name"].tolist() == [b"ann", b"nobody", b"nobody"]
    assert batch["name_mask"].tolist() == [True, False, False]
    assert batch["n"].tolist() == [7, 0, 8]
    np.testing.assert_array_equal(batch["x"], [1.5, -1.0, np.nan])
    assert batch["word"].tolist() == [b"NA", b"null", b"none"]


def test_text_in_another_encoding_is_asked_for_and_read_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("city,n\nKöln,1\nZürich,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"column 'city' of .*rows.csv holds what is no utf-8 text: say encoding="):
        tfos.dataset(str(path), batch_size=2)
    (batch,) = tfos.dataset(str(path), batch_size=2, shuffle=False, encoding="latin-1").as_numpy_iterator()
    assert [city.decode() for city in batch["city"]] == ["Köln", "Zürich"]
    (batch,) = tfos.dataset(str(path), batch_size=2, shuffle=False, schema={"city": "binary"}).as_numpy_iterator()
    assert batch["city"].tolist() == ["Köln".encode("latin-1"), "Zürich".encode("latin-1")]
    with pytest.raises(DataError, match="encoding='klingon' is unknown"):
        tfos.dataset(str(path), batch_size=2, encoding="klingon")


@pytest.mark.parametrize(("value", "remedy"), [("1.5", "double"), ("one", "string")])
def test_csv_files_of_two_types_are_told_which_holds_both(tmp_path: Path, value: str, remedy: str) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text(f"x\n{value}\n")
    with pytest.raises(DataError, match=f"schema={{'x': '{remedy}'}}"):
        tfos.dataset(str(tmp_path), batch_size=2)
    assert len(list(tfos.dataset(str(tmp_path), batch_size=2, schema={"x": remedy}))) == 1


def test_nulls_are_found_when_they_are_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([None], pa.int64())}), tmp_path / "b.parquet")
    with pytest.raises(tf.errors.OpError, match=r"b\.parquet.*'x' has nulls"):
        list(tfos.dataset(str(tmp_path), batch_size=2, shuffle=False))


def test_tfrecord_files_are_cut_into_runs_of_records(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecord_units, "PIECE_BYTES", 300)
    whole = str(folder / "tfrecord")
    for shuffle in (False, True):
        datasets = [on_rank(rank, 3, whole, "tfrecord", batch_size=BATCH, shuffle=shuffle) for rank in range(3)]
        assert sorted(itertools.chain(*ids_by_step(datasets))) == list(range(ROWS))
    kept = (folder / "tfrecord" / "part-0.tfrecord").read_bytes()
    source = open_source(whole, "tfrecord")
    pieces = source.count(source.files[0], ["id"])
    assert len(pieces) > 5
    assert [start for start, _, _ in pieces[1:]] == [stop for _, stop, _ in pieces[:-1]]
    assert pieces[-1][1] == len(kept)
    damaged = pieces[3][0]
    (tmp_path / "a").write_bytes(kept[: damaged + 20] + b"\0\0\0\0" + kept[damaged + 24 :])
    with pytest.raises(tf.errors.OpError, match=rf"record at byte {damaged} of"):
        list(tfos.dataset(str(tmp_path), "tfrecord", batch_size=2, schema={"id": "int64"}))


def test_a_cut_tfrecord_file_is_found_when_it_is_counted(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "tfrecord" / "part-0.tfrecord").read_bytes()
    (tmp_path / "cut.tfrecord").write_bytes(whole[:-3])
    with pytest.raises(DataError, match=r"record at byte \d+ of .*cut\.tfrecord is corrupt"):
        tfos.dataset(str(tmp_path), "tfrecord", batch_size=2, schema={"id": "int64"})


def test_a_changed_file_ends_the_epoch_with_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(9)}), tmp_path / "a.parquet")
    found = tfos.dataset(str(tmp_path), batch_size=2)
    assert len(list(found)) == 5
    pq.write_table(pa.table({"x": np.arange(5)}), tmp_path / "a.parquet")
    with pytest.raises(tf.errors.OpError, match="rewritten"):
        list(found)


@pytest.mark.parametrize(("total", "world", "batch_size"), [(1, 3, 4), (7, 3, 2), (100, 7, 9), (1000, 4, 1)])
def test_runs_are_dealt_so_that_every_batch_is_full_and_even(total: int, world: int, batch_size: int) -> None:
    shares = [in_runs(total, batch_size=batch_size, rank=rank, world=world) for rank in range(world)]
    sizes = np.array([share.sizes for share in shares])
    assert sizes.sum(axis=0).tolist() == [min(batch_size, total - at) for at in range(0, total, batch_size)]
    assert (sizes.max(axis=0) - sizes.min(axis=0)).max() <= 1
    assert [int(share.starts[0]) for share in shares[1:]] == [int(share.stops[0]) for share in shares[:-1]]
    assert int(shares[0].starts[0]) == 0
    assert int(shares[-1].stops[0]) == total


def test_units_come_in_an_order_of_the_seed_and_the_epoch() -> None:
    assert sorted(unit_order(50, 3, 0).tolist()) == list(range(50))
    assert unit_order(50, 3, 0).tolist() == unit_order(50, 3, 0).tolist() != unit_order(50, 3, 1).tolist()


def read_all(path: Path, **options: Any) -> list[Any]:
    """The batches of a dataset that is not shuffled."""
    return list(tfos.dataset(str(path), batch_size=50, shuffle=False, **options).as_numpy_iterator())


def test_timestamps_of_any_year_come_as_spark_wrote_them(tmp_path: Path) -> None:
    years = np.array(["9999-12-31", "0001-01-01", "2020-01-01"], "datetime64[us]")
    pq.write_table(pa.table({"t": years}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (batch,) = read_all(tmp_path)
    assert batch["t"].tolist() == years.astype("int64").tolist()


@pytest.mark.parametrize("kind", ["csv", "tfrecord.gz"])
def test_a_file_that_has_grown_since_it_was_counted_takes_no_rows_from_others(tmp_path: Path, kind: str) -> None:
    def put(name: str, numbers: range) -> None:
        path = tmp_path / f"{name}.{kind}"
        if kind == "csv":
            path.write_text("x\n" + "".join(f"{number}\n" for number in numbers))
            return
        job = new_job(str(tmp_path / "made"), "Example", True, True)
        job.commit([job.write(iter(pa.table({"x": list(numbers)}).to_batches()), 0)])
        (made,) = (tmp_path / "made").glob("part*")
        path.write_bytes(made.read_bytes() if made.name.endswith(".gz") else gzip.compress(made.read_bytes()))
        shutil.rmtree(tmp_path / "made")

    put("a", range(10))
    put("b", range(100, 110))
    made = tfos.dataset([str(tmp_path / f"{name}.{kind}") for name in "ab"], batch_size=5, shuffle=False)
    assert sorted(int(x) for batch in made for x in batch["x"]) == [*range(10), *range(100, 110)]
    put("a", range(15))
    with pytest.raises(tf.errors.OpError, match=r"has \d+ bytes and had \d+: it has been rewritten"):
        list(made)


def test_line_breaks_in_quoted_text_are_part_of_it_in_files_of_any_size(tmp_path: Path) -> None:
    text = "one line\nand another " * 20
    rows = 15_000
    pd.DataFrame({"x": range(rows), "text": [text] * rows}).to_csv(tmp_path / "a.csv", index=False)
    assert (tmp_path / "a.csv").stat().st_size > csv.BLOCK_BYTES
    batches = read_all(tmp_path)
    assert sum(len(batch["x"]) for batch in batches) == rows
    assert {value for batch in batches for value in batch["text"].tolist()} == {text.encode()}


def test_lists_that_are_empty_in_the_first_rows_alone_are_lists(tmp_path: Path) -> None:
    of_numbers = pa.list_(pa.int64())
    pq.write_table(pa.table({"x": pa.array([[], []], of_numbers)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([[1, 2], [3]], of_numbers)}), tmp_path / "b.parquet")
    (batch,) = read_all(tmp_path, pad="0")
    assert batch["x"].tolist() == [[0, 0], [0, 0], [1, 2], [3, 0]]


def test_a_first_parquet_file_without_rows_says_nothing_of_types(tmp_path: Path) -> None:
    pd.DataFrame({"x": []}).astype(object).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": [1.5, 2.5]}).to_parquet(tmp_path / "b.parquet")
    (batch,) = read_all(tmp_path)
    assert batch["x"].tolist() == [1.5, 2.5]


def test_a_partition_column_may_begin_with_an_underscore(tmp_path: Path) -> None:
    for name in ("_c0=1", "_temporary", "_c0=2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text("x\n7\n")
    (batch,) = read_all(tmp_path)
    assert sorted(batch["_c0"].tolist()) == [1, 2]


def test_a_seed_that_is_none_is_told_at_once_and_endings_count_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "a.csv.GZ").write_bytes(gzip.compress(b"x\n7\n"))
    (batch,) = read_all(tmp_path)
    assert batch["x"].tolist() == [7]
    for seed in (-1, 1.0):
        with pytest.raises(DataError, match="give a whole number from 0"):
            tfos.dataset(str(tmp_path), batch_size=1, seed=seed)  # type: ignore[arg-type]
