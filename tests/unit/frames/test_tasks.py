"""What runs in the workers, on Arrow batches as Spark gives them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_magic.columns.row_buffer import reblocked
from tfos_magic.errors import DataError, UsageError
from tfos_magic.frames.arrow_blocks import from_numpy, to_numpy
from tfos_magic.frames.grouping import GroupTask, reduced_segments
from tfos_magic.frames.spark_tasks import MapTask, compiled_for, use_whole_vectors
from tfos_magic.frames.specs import ColumnSpec
from tfos_magic.frames.tensor_function import AGGREGATE, BLOCKS, Program, pack

X = ColumnSpec("x", "float64")


def batches(*sizes: int) -> list[pa.RecordBatch]:
    rows = iter(range(sum(sizes)))
    return [pa.record_batch({"x": pa.array([float(next(rows)) for _ in range(size)])}) for size in sizes]


def map_task(outputs: Sequence[ColumnSpec]) -> MapTask:
    program = Program(BLOCKS, pack(lambda x: {"z": x + 3}, None), ("x",), (X,))
    return MapTask(program, ("x",), (), tuple(outputs), True, None)


@pytest.mark.parametrize("sizes", [(10,), (3, 3, 4), (1,) * 10, (4, 0, 4, 2), (0,), ()])
def test_batches_are_cut_anew_into_multiples_with_one_odd_end(sizes: tuple[int, ...]) -> None:
    made = list(reblocked(batches(*sizes), 4))
    assert all(batch.num_rows % 4 == 0 for batch in made[:-1])
    assert [x for batch in made for x in batch.column("x").to_pylist()] == list(range(sum(sizes)))


def test_numbers_vectors_and_matrices_are_views_of_arrows_own_memory() -> None:
    flat = pa.array(np.arange(12.0))
    pairs = pa.ListArray.from_arrays(pa.array(range(0, 13, 2), pa.int32()), flat)
    threes = pa.ListArray.from_arrays(pa.array([0, 3, 6], pa.int32()), pairs)
    address = flat.buffers()[1].address
    for array, shape in ((flat, ()), (pairs, (2,)), (threes, (3, 2))):
        view = to_numpy(array, ColumnSpec("x", "float64", (None,) * len(shape)))
        assert view.shape == (len(array), *shape)
        assert view.ctypes.data == address
    assert to_numpy(pairs.slice(2), ColumnSpec("x", "float64", (2,))).ctypes.data == address + 4 * 8


def test_outputs_are_views_of_numpys_own_memory() -> None:
    values = np.arange(6.0).reshape(3, 2)
    array = from_numpy(values, ColumnSpec("x", "float64", (2,)))
    assert array.to_pylist() == values.tolist()
    assert array.values.buffers()[1].address == values.ctypes.data


def test_nulls_inside_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="'x' has nulls inside its arrays"):
        to_numpy(pa.array([[1.0, None]]), ColumnSpec("x", "float64", (2,)))


@pytest.mark.parametrize(
    ("outputs", "kind", "message"),
    [
        ([ColumnSpec("z", "float32")], DataError, r"'z' as float32\[\?\], the function makes float64\[\?\]"),
        ([ColumnSpec("z", "float64", (None,))], DataError, r"'z' as float64\[\?,\?\], the function makes"),
        ([ColumnSpec("y", "float64")], UsageError, "the schema has 'y', which the function does not return"),
        ([ColumnSpec("z", "float64"), ColumnSpec("y", "float64")], UsageError, "the schema has 'y'"),
    ],
)
def test_a_schema_that_the_function_does_not_keep_is_refused(
    outputs: list[ColumnSpec], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        list(map_task(outputs)(batches(3)))


def test_an_equal_function_is_traced_once() -> None:
    one, other = map_task([]).program, map_task([]).program
    assert one is not other
    assert compiled_for(one) is compiled_for(other)


def test_the_block_is_smaller_the_wider_the_functions_tensors_are() -> None:
    def rows_for(width: int) -> int:
        function = pack(lambda x: {"z": tf.reduce_sum(tf.ones([width, 1], tf.float64) * x, 0)}, None)
        return compiled_for(Program(BLOCKS, function, ("x",), (X,))).block_rows

    assert rows_for(1000) == 256
    assert rows_for(10) == 8192


def total(x_input: Any) -> dict[str, Any]:
    return {"x": tf.reduce_sum(x_input, axis=0)}


def test_segments_of_any_lengths_are_reduced_in_their_order() -> None:
    counts = np.random.default_rng(2).integers(1, 70, 300)
    values = np.random.default_rng(3).normal(size=(counts.sum(), 2))
    spec = ColumnSpec("x", "float64", (2,))
    program = Program(AGGREGATE, pack(total, None), ("x_input",), (spec,), False)
    made = reduced_segments(compiled_for(program), program, [values], counts)["x"]
    ends = np.cumsum(counts)
    expected = [values[end - count : end].sum(axis=0) for end, count in zip(ends, counts, strict=True)]
    np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("final", [True, False])
def test_groups_come_once_though_their_rows_are_in_several_chunks(final: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("tfos_magic.frames.grouping._CHUNK_ROWS", 8)
    program = Program(AGGREGATE, pack(total, None), ("x_input",), (ColumnSpec("x", "float64", (1,)),), False)
    task = GroupTask(program, ("k",), final)
    as_spark = pa.schema(
        [pa.field("k", pa.int64()), pa.field("x", pa.list_(pa.field("element", pa.float64(), False)), False)]
    )
    rows = [pa.record_batch([[k] * 5, [[1.0]] * 5], schema=as_spark) for k in (None, 0, 0, 1, 2, 2, 2)]
    made = pa.Table.from_batches(task(rows))
    sums: dict[Any, float] = {}
    for row in made.to_pylist():
        sums[row["k"]] = sums.get(row["k"], 0.0) + row["x"][0]
    assert sums == {None: 5.0, 0: 10.0, 1: 5.0, 2: 15.0}
    assert made.num_rows == 4 if final else made.num_rows < 7


@pytest.mark.parametrize(
    ("version", "flags", "told", "expected"),
    [
        ("2.21.0", "fpu avx2 avx512f sse", None, "--xla_cpu_prefer_vector_width=512"),
        ("2.21.0", "fpu avx2 sse", None, None),
        ("2.22.0", "fpu avx2 avx512f sse", None, None),
        ("2.21.0", "fpu avx2 avx512f sse", "--xla_dump_to=x", "--xla_dump_to=x"),
    ],
    ids=["it has them", "it has none", "a TensorFlow of other flags", "the user has flags"],
)
def test_xla_is_told_of_the_processors_wide_vectors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, flags: str, told: str | None, expected: str | None
) -> None:
    monkeypatch.setenv("XLA_FLAGS", told or "")
    if told is None:
        monkeypatch.delenv("XLA_FLAGS")
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    use_whole_vectors(version, str(tmp_path / "cpuinfo"))
    assert os.environ.get("XLA_FLAGS") == expected
