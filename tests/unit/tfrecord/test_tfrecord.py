"""TFRecord without Spark: frames, checksums, messages, columns, schemas, files. TensorFlow's classes are the judge."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_magic.errors import DataError
from tfos_magic.tfrecord import protobuf_wire
from tfos_magic.tfrecord.decode import decode, refuse_types
from tfos_magic.tfrecord.encode import encode
from tfos_magic.tfrecord.framing import frame, masked, split
from tfos_magic.tfrecord.reading import ReadOptions, batches, grouped
from tfos_magic.tfrecord.record_files import list_files
from tfos_magic.tfrecord.schema_inference import infer
from tfos_magic.tfrecord.writing import new_job

INTS = [0, 1, -1, 127, 128, 300, -(2**63), 2**63 - 1, 1 << 35]


def feature(values: list[Any]) -> tf.train.Feature:
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**values: list[Any]) -> bytes:
    features = {name: feature(of) for name, of in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path: Path, records: list[bytes], options: str = "") -> str:
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def rows(url: str, schema: pa.Schema, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in batches(url, schema, ReadOptions(**options)) for row in batch.to_pylist()]


def parsed(records: list[bytes], schema: pa.Schema, record_type: str = "Example") -> list[dict[str, Any]]:
    block = np.frombuffer(b"".join(records) + bytes(protobuf_wire.PADDING), np.uint8)
    ends = np.cumsum([len(record) for record in records])
    starts = ends - [len(record) for record in records]
    return decode(block, starts, ends, schema, record_type).to_pylist()


@pytest.fixture
def mixed() -> list[bytes]:
    return [example(id=[i], x=[i / 2, 1.0], s=[b"a%d" % i] * (i % 3 + 1), n=INTS[: i % 9 + 1]) for i in range(200)]


MIXED = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.list_(pa.float32())),
        ("s", pa.list_(pa.string())),
        ("n", pa.list_(pa.int64())),
        ("none", pa.float64()),
    ]
)


def test_the_masked_checksum_is_that_of_tensorflows_format() -> None:
    assert masked(bytes(32)) == (((0x8A9136AA >> 15) | (0x8A9136AA << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_frames_are_byte_for_byte_those_of_tensorflow(tmp_path: Path, mixed: list[bytes]) -> None:
    records = [*mixed, b"", b"x" * 100_000]
    written = Path(write(tmp_path / "a", records)).read_bytes()
    assert frame(pa.array(records, pa.binary())).to_pybytes() == written
    found = split(written + bytes(protobuf_wire.PADDING), len(written))
    assert [written[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == records
    assert (found.rest, found.damage) == (len(written), "")


@pytest.mark.parametrize("block_bytes", [16, 1000, 1 << 20])
def test_a_file_is_read_the_same_in_blocks_of_any_size(tmp_path: Path, mixed: list[bytes], block_bytes: int) -> None:
    found = rows(write(tmp_path / "a", mixed), MIXED, block_bytes=block_bytes)
    assert [row["id"] for row in found] == list(range(200))
    assert found[4] == {"id": 4, "x": [2.0, 1.0], "s": ["a4", "a4"], "n": INTS[:5], "none": None}
    assert found[8]["n"] == INTS


def test_what_we_write_parses_in_tensorflow_to_the_same_values(mixed: list[bytes]) -> None:
    batch = pa.RecordBatch.from_pylist(parsed(mixed, MIXED), MIXED)
    for ours, theirs in zip(encode(batch, "Example").to_pylist(), mixed, strict=True):
        assert tf.train.Example.FromString(ours) == tf.train.Example.FromString(theirs)


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.int32(), pa.float64(), pa.string(), pa.binary()])
def test_every_type_comes_back_with_nulls_and_empty_arrays(kind: pa.DataType) -> None:
    values = pa.array([1, 0, 1]).cast(pa.string() if pa.types.is_binary(kind) else kind).cast(kind).to_pylist()
    columns = {
        "one": pa.array([values[0], None, values[2], values[1]], kind),
        "many": pa.array([values, [], None, values[:1]], pa.list_(kind)),
        "steps": pa.array([[values, []], [], None, [values[:1]]], pa.list_(pa.list_(kind))),
    }
    batch = pa.record_batch(columns)
    assert parsed(encode(batch, "SequenceExample").to_pylist(), batch.schema, "SequenceExample") == batch.to_pylist()
    batch = batch.select(["one", "many"])
    assert parsed(encode(batch.slice(1, 3), "Example").to_pylist(), batch.schema) == batch.to_pylist()[1:]


def test_sequence_examples_are_those_of_tensorflow() -> None:
    steps = {"w": tf.train.FeatureList(feature=[feature([b"x", b"yy"]), feature([b"z"])]), "e": tf.train.FeatureList()}
    record = tf.train.SequenceExample(
        context=tf.train.Features(feature={"id": feature([7])}), feature_lists=tf.train.FeatureLists(feature_list=steps)
    )
    nested = pa.list_(pa.list_(pa.string()))
    batch = pa.record_batch(
        {"id": pa.array([7]), "w": pa.array([[["x", "yy"], ["z"]]], nested), "e": pa.array([[]], nested)}
    )
    assert parsed([record.SerializeToString()], batch.schema, "SequenceExample") == batch.to_pylist()
    assert tf.train.SequenceExample.FromString(encode(batch, "SequenceExample")[0].as_py()) == record


def test_values_that_are_not_packed_and_fields_that_come_twice_follow_protobufs_rules() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def record(*entries: tuple[bytes, bytes]) -> bytes:
        return field(1, b"".join(field(1, field(1, key) + field(2, value)) for key, value in entries))

    loose = field(3, b"\x08\xac\x02" + b"\x08\x05" + field(1, b"\x07\x08"))
    floats = field(2, b"\x0d" + np.float32(1.5).tobytes() + field(1, np.float32([2, 3]).tobytes()))
    unknown = b"\x79" + bytes(8) + b"\x75" + bytes(4) + b"\x70\x96\x01"
    schema = pa.schema([("n", pa.list_(pa.int64())), ("f", pa.list_(pa.float32()))])
    records = [
        unknown + record((b"n", field(3, b"")), (b"n", loose)) + record((b"f", floats)),
        record((b"n", field(2, b"") + loose)),
        b"",
    ]
    expected = [{"n": [300, 5, 7, 8], "f": [1.5, 2.0, 3.0]}, {"n": [300, 5, 7, 8], "f": None}, {"n": None, "f": None}]
    assert parsed(records, schema) == expected
    for raw, row in zip(records, expected, strict=True):
        theirs = tf.train.Example.FromString(raw).features.feature
        assert list(theirs["n"].int64_list.value) == (row["n"] or [])


@pytest.mark.parametrize("at", range(0, 60))
def test_a_broken_message_is_refused_as_protobuf_refuses_it_and_never_reads_elsewhere(at: int) -> None:
    good = example(n=[1, 300], s=[b"abc"], f=[1.0])
    for value in (0xFF, 0x00, 0x7F, good[at % len(good)] ^ 8):
        bad = bytearray(good)
        bad[at % len(good)] = value
        try:
            theirs = {
                k: v.WhichOneof("kind") for k, v in tf.train.Example.FromString(bytes(bad)).features.feature.items()
            }
        except Exception:  # protobuf's own error for what is no message
            theirs = None
        schema = pa.schema([("n", pa.list_(pa.int64())), ("s", pa.list_(pa.binary())), ("f", pa.list_(pa.float32()))])
        try:
            (row,) = parsed([bytes(bad)], schema)
        except protobuf_wire.Malformed:
            assert theirs is None, (value, bytes(bad))
            continue
        except DataError:  # another kind than the schema's, which is well formed
            continue
        if theirs is not None:
            assert {k for k, v in row.items() if v is not None} == {k for k in row if theirs.get(k)}


def test_a_list_of_integers_that_ends_within_a_number_is_refused() -> None:
    bad = bytearray(example(n=[300]))
    bad[-1] |= 0x80
    with pytest.raises(protobuf_wire.Malformed, match="ends within a number"):
        parsed([bytes(bad)], pa.schema([("n", pa.list_(pa.int64()))]))


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("place", "reason"),
    [(0, "length"), (5, "length"), (9, "length"), (14, "data"), (-2, "data"), (None, "ends within")],
)
def test_a_damaged_record_is_named_by_file_and_byte_and_permissive_keeps_what_came_before(
    tmp_path: Path, mixed: list[bytes], caplog: pytest.LogCaptureFixture, place: int | None, reason: str
) -> None:
    url = write(tmp_path / "bad", mixed)
    begin = sum(len(record) + 16 for record in mixed[:150])
    size = len(mixed[150]) + 16
    if place is None:
        Path(url).write_bytes(Path(url).read_bytes()[: begin + size // 2])
    else:
        flipped(Path(url), begin + (place if place >= 0 else size + place))
    with pytest.raises(DataError, match=rf"byte {begin} of {url} is corrupt: .*{reason}"):
        rows(url, MIXED)
    with caplog.at_level(logging.WARNING, "tfos_magic"):
        assert len(rows(url, MIXED, permissive=True, block_bytes=2000)) == 150
    assert f"byte {begin} of {url}" in caplog.text
    assert "150 rows" in caplog.text


def test_a_record_that_is_no_example_is_corrupt_from_there_on(tmp_path: Path, mixed: list[bytes]) -> None:
    url = write(tmp_path / "bad", [*mixed[:70], b"\xff" * 20, *mixed])
    with pytest.raises(DataError, match=rf"byte {sum(len(r) + 16 for r in mixed[:70])} of .* be read as Example"):
        rows(url, MIXED)
    assert len(rows(url, MIXED, permissive=True)) == 70


def test_compressed_files_are_read_by_name_or_option_and_a_cut_one_is_corrupt(
    tmp_path: Path, mixed: list[bytes]
) -> None:
    named, other = write(tmp_path / "a.gz", mixed, "GZIP"), write(tmp_path / "b", mixed, "GZIP")
    assert len(rows(named, MIXED)) == len(rows(other, MIXED, compression="GZIP")) == 200
    cut = Path(named).read_bytes()
    Path(named).write_bytes(cut[: len(cut) // 2])
    with pytest.raises(DataError, match="decompressed"):
        rows(named, MIXED)
    assert 0 < len(rows(named, MIXED, permissive=True)) < 200


def test_the_schema_comes_from_all_of_the_sample(tmp_path: Path) -> None:
    one = write(
        tmp_path / "1", [example(a=[1], s=[b"x"], t=[b"text"], f=[1.0], u=[b"u"]), example(a=[1, 2], s=[b"\xff"])]
    )
    two = write(tmp_path / "2", [example(g=[1.0, 2.0], a=[3], u=[b"\xfe"]), example(late=[1])])
    expected = {
        "a": pa.list_(pa.int64()),
        "f": pa.float32(),
        "g": pa.list_(pa.float32()),
        "s": pa.binary(),
        "t": pa.string(),
        "u": pa.binary(),
    }
    found = infer([one, two], ReadOptions(), 100)
    assert dict(zip(found.names, found.types, strict=True)) == expected | {"late": pa.int64()}
    assert "late" not in infer([one, two], ReadOptions(), 1).names
    assert infer([one], ReadOptions(), 1).field("a").type == pa.int64()
    assert infer([one], ReadOptions(), 9, binary=True).field("t").type == pa.binary()


def test_records_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", [example(a=[1])]), write(tmp_path / "2", [example(a=[1.0])])
    with pytest.raises(DataError, match=r"'a' holds .* in some records and .* in others"):
        infer([one, two], ReadOptions(), 10)
    both = write(tmp_path / "3", [example(a=[1]), example(a=[1.0])])
    with pytest.raises(DataError, match="float and int64"):
        infer([both], ReadOptions(), 10)
    with pytest.raises(DataError, match="several kinds"):
        rows(both, pa.schema([("a", pa.int64())]))
    with pytest.raises(DataError, match="give one"):
        infer([], ReadOptions(), 10)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.float32(), "holds int64 values"),
        (pa.int8(), "do not fit int8"),
        (pa.int64(), "2 values in a record"),
    ],
)
def test_a_schema_that_does_not_fit_is_told_with_the_feature_and_the_file(
    tmp_path: Path, kind: pa.DataType, message: str
) -> None:
    url = write(tmp_path / "a", [example(a=[1000]), example(a=[1, 2])] if kind != pa.int8() else [example(a=[1000])])
    with pytest.raises(DataError, match=f"{url}.*'a'.*{message}|{url}.*{message}"):
        rows(url, pa.schema([("a", kind)]))
    missing = pa.schema([pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(DataError, match="'b' is missing"):
        rows(url, missing)


def test_bytes_that_are_not_text_are_refused_as_a_string(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="as binary"):
        rows(write(tmp_path / "a", [example(a=[b"\xff"])]), pa.schema([("a", pa.string())]))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.decimal128(9, 2), "cast"),
        (pa.timestamp("us"), "unix_timestamp"),
        (pa.struct([("x", pa.int64())]), "a.\\*"),
        (pa.map_(pa.string(), pa.int64()), "map_keys"),
        (pa.list_(pa.list_(pa.int64())), "SequenceExample"),
    ],
)
def test_types_that_no_record_holds_are_refused_with_advice(kind: pa.DataType, remedy: str) -> None:
    with pytest.raises(DataError, match=f"'a'.*{remedy}"):
        refuse_types(pa.schema([("a", kind)]), "Example")


def test_nulls_inside_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="'a' has nulls inside"):
        encode(pa.record_batch({"a": pa.array([[1, None]])}), "Example")


def test_files_are_found_in_folders_and_by_globs_and_hidden_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "_temporary-x").mkdir()
    for name in ("a.tfrecord", "b.txt", "_SUCCESS", ".c", "day=1/d.tfrecord", "_temporary-x/e.tfrecord"):
        (tmp_path / name).write_bytes(b"1234")

    def names(*paths: str, pattern: str = "") -> list[str]:
        return [str(Path(file.url).relative_to(tmp_path)) for file in list_files(paths, pattern)]

    top = str(tmp_path)
    assert names(top) == ["a.tfrecord", "b.txt", "day=1/d.tfrecord"]
    assert names(f"file://{top}", f"{top}/a.tfrecord", pattern="*.tfrecord") == ["a.tfrecord", "day=1/d.tfrecord"]
    assert names(f"{top}/*.tfrecord") == ["a.tfrecord"]
    assert names(f"{top}/*") == ["a.tfrecord", "b.txt", "day=1/d.tfrecord"]
    assert names(f"{top}/*/*.tfrecord") == ["day=1/d.tfrecord"]
    assert [file.bytes for file in list_files([top])] == [4, 4, 4]
    with pytest.raises(DataError, match="nothing at"):
        list_files([f"{top}/missing"])


def test_small_files_share_a_task_and_large_ones_have_their_own(tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 10), ("c", 5 << 20), ("d", 10)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    groups = [[file.url for file in group] for group in grouped(list_files([str(tmp_path)]), 4 << 20)]
    assert [[Path(url).name for url in urls] for urls in groups] == [["a", "b"], ["c"], ["d"]]


def test_any_file_system_of_fsspec_is_written_and_read() -> None:
    where = "memory://tfrecord-test/out"
    job = new_job(where, "Example", compressed=True, overwrite=False)
    name = job.write(iter([pa.record_batch({"a": pa.array([1, 2])})]), 3)
    job.commit([name])
    (file,) = list_files([where])
    assert file.url == f"memory://{'/tfrecord-test/out'}/{name}"
    assert name.endswith(".gz")
    assert rows(file.url, pa.schema([("a", pa.int64())])) == [{"a": 1}, {"a": 2}]


def test_files_get_their_names_only_when_all_are_there(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array([1, 2])})
    (tmp_path / "old").write_bytes(b"")
    job = new_job(str(tmp_path), "Example", compressed=False, overwrite=True)
    names = [job.write(iter([batch]), 0), job.write(iter([batch]), 1), job.write(iter([]), 2)]
    assert names[2] == ""
    assert not list_files([str(tmp_path / "part-*")] if list(tmp_path.glob("part-*")) else [])
    with pytest.raises(DataError, match="share"):
        job.commit([names[0], "part-of-another-machine"])
    assert (tmp_path / "old").exists()
    job.commit(names[:2])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["_SUCCESS", *names[:2]])


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def breaks() -> Any:
        yield pa.record_batch({"a": pa.array([[1]])})
        yield pa.record_batch({"a": pa.array([[None]], pa.list_(pa.int64()))})

    job = new_job(str(tmp_path / "out"), "Example", compressed=False, overwrite=False)
    with pytest.raises(DataError):
        job.write(breaks(), 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    job.clear()
    assert not list((tmp_path / "out").iterdir())


def test_gzip_files_are_the_same_whenever_they_are_written(tmp_path: Path) -> None:
    job = new_job(str(tmp_path), "Example", compressed=True, overwrite=False)
    batch = pa.record_batch({"a": pa.array(["x"])})
    one, two = (tmp_path / job.hidden / job.write(iter([batch]), 0) for _ in range(2))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes()[4:8] == bytes(4)  # the time
    assert gzip.decompress(one.read_bytes()) == frame(encode(batch, "Example")).to_pybytes()
