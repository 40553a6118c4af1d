"""Tensor functions over Spark DataFrames: known answers, types, shapes, laziness, and what workers keep."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from pyspark.errors import PythonException
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tfos_magic.frames as tfs
from tests.soak import every
from tfos_magic.errors import DataError, UsageError
from tfos_magic.notebook.magics import TFOSMagics
from tfos_magic.notebook.map_magic import map_cell
from tfos_magic.notebook.options import parse


def doubles(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("double").alias("x"))


def total(x_input: Any) -> dict[str, Any]:
    return {"x": tf.reduce_sum(x_input, axis=0)}


def score(x: Any) -> dict[str, Any]:
    """Kernel density score of the TensorFrames talk, b = 0.5, points -1, 2 and 5."""
    points = tf.constant([-1.0, 2.0, 5.0], tf.float64)
    d = -tf.square(x[tf.newaxis, :] - points[:, tf.newaxis]) / (2 * 0.5**2)
    m = tf.reduce_max(d, axis=0)
    return {"score": m - np.log(0.5 * 3) + tf.math.log(tf.reduce_sum(tf.exp(d - m), axis=0))}


@pytest.mark.parametrize("partitions", every(3, [13, 3, 1]))
def test_three_is_added_in_any_partitioning(spark: SparkSession, partitions: int) -> None:
    made = tfs.map_blocks(lambda x: {"z": x + 3}, doubles(spark, 10, partitions))
    assert made.columns == ["x", "z"]
    assert [(row.x, row.z) for row in made.collect()] == [(i, i + 3) for i in range(10)]


@pytest.mark.parametrize("partitions", every(3, [9, 2, 1]))
def test_sums_are_the_same_in_any_partitioning_with_empty_ones(spark: SparkSession, partitions: int) -> None:
    frame = doubles(spark, 5, partitions)
    assert tfs.reduce_blocks(total, frame, block_rows=2) == 10
    assert tfs.reduce_rows(lambda x_1, x_2: {"x": x_1 + x_2}, frame) == 10


def test_vectors_are_summed_and_their_least_is_found(spark: SparkSession) -> None:
    frame = doubles(spark, 10, 3).select(F.array("x", -F.col("x")).alias("y"))
    np.testing.assert_array_equal(tfs.reduce_blocks(lambda y_input: {"y": tf.reduce_sum(y_input, 0)}, frame), [45, -45])
    least = tfs.reduce_blocks(lambda y_input: {"y": tf.reduce_min(y_input, 0)}, tfs.analyze(frame))
    np.testing.assert_array_equal(least, [0, -9])


def test_rows_of_different_lengths_go_through_unchanged(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0],), ([2.0, 2.1],)], "v array<double>")
    made = tfs.map_rows(lambda v: {"w": v}, frame).collect()
    assert [row.w for row in made] == [[1.0], [2.0, 2.1]]


def test_trimming_gives_a_row_for_each_block_or_more_than_came_in(spark: SparkSession) -> None:
    frame = doubles(spark, 6, 2)
    sums = tfs.map_blocks(lambda x: {"s": tf.reduce_sum(x, keepdims=True)}, frame, trim=True)
    assert [row.s for row in sums.collect()] == [3.0, 12.0]
    assert tfs.map_blocks(lambda x: {"t": tf.repeat(x, 2)}, frame, trim=True).count() == 12


def test_the_kernel_density_score_has_its_known_values(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0.0,), (2.0,)], "x double")
    scores = [row.score for row in tfs.map_blocks(score, frame).orderBy("x").collect()]
    np.testing.assert_allclose(scores, [-2.402989, -0.405465], atol=5e-7)


def test_blocks_are_bounded_whatever_the_partition(spark: SparkSession) -> None:
    made = tfs.map_blocks(lambda x: {"n": tf.fill(tf.shape(x), tf.size(x))}, doubles(spark, 25_000, 1), block_rows=1024)
    assert [tuple(row) for row in made.groupBy("n").count().orderBy("n").collect()] == [(424, 424), (1024, 24 * 1024)]


@pytest.mark.soak
def test_a_map_is_lazy_and_its_error_comes_with_the_action(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1.0,), (None,)], "x double")
    made = tfs.map_blocks(lambda x: {"z": x}, frame)
    with pytest.raises(PythonException, match=r"^An exception.*:\n[\w.]+DataError: column 'x' has nulls.*$"):
        made.collect()
    with pytest.raises(DataError, match=r"^column 'x' has nulls"):
        tfs.reduce_blocks(total, frame)


def test_an_empty_frame_maps_to_nothing_and_cannot_be_reduced(spark: SparkSession) -> None:
    empty = doubles(spark, 10, 2).where("x < 0")
    assert tfs.map_blocks(lambda x: {"z": x}, empty).collect() == []
    with pytest.raises(DataError, match="no rows to reduce"):
        tfs.reduce_blocks(total, empty)


def test_shapes_are_learnt_declared_shown_and_kept(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [([1.0, 2.0], [[1, 2, 3]], [1.0], "a"), ([3.0, 4.0], [[4, 5, 6]], [], "b")]
    frame = spark.createDataFrame(rows, "v array<double>, m array<array<int>>, r array<double>, s string")
    assert " |-- m: int32[?,?,?]" in tfs.explain(frame)
    known = tfs.analyze(frame)
    expected = ["v: float64[?,2]", "m: int32[?,1,3]", "r: float64[?,?]", "s: string[?]"]
    assert tfs.explain(known).splitlines() == ["root", *(f" |-- {line}" for line in expected)]
    made = tfs.map_blocks(lambda m: {"flat": tf.reshape(m, [-1, 3])}, known)
    tfs.print_schema(made)
    assert " |-- flat: int32[?,3]" in capsys.readouterr().out
    assert [row.flat for row in made.collect()] == [[1, 2, 3], [4, 5, 6]]
    assert "v: float64[?,2]" in tfs.explain(tfs.append_shape(frame, "v", [2]))


def test_shapes_that_the_data_do_not_have_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0, 2.0],)], "v array<double>")
    with pytest.raises(DataError, match=r"'v' is float64\[\?,\?\] and cannot have cells of float64\[2,2\]"):
        tfs.append_shape(frame, "v", [2, 2])
    with pytest.raises(DataError, match="has no column 'w'"):
        tfs.append_shape(frame, "w", [2])
    wrong = tfs.append_shape(frame, "v", [3])
    with pytest.raises(DataError, match=r"'v' is float64\[\?,3\] by its metadata, and has cells of 2 values"):
        tfs.reduce_blocks(lambda v_input: {"v": tf.reduce_sum(v_input, 0)}, wrong)


@pytest.mark.soak
def test_every_type_goes_there_and_back(spark: SparkSession) -> None:
    frame = spark.sql(
        "select true b, 1Y i8, 2S i16, 3 i32, 4L i64, 1.5F f32, 2.5D f64, 'ä' s, X'00FF' bin, array(array(1L, 2L)) m"
    )
    names = frame.columns
    made = tfs.map_blocks(
        lambda b, i8, i16, i32, i64, f32, f64, s, bin, m: {
            f"{name}_": value
            for name, value in zip(
                ("b", "i8", "i16", "i32", "i64", "f32", "f64", "m"), (b, i8, i16, i32, i64, f32, f64, m), strict=True
            )
        },
        frame,
    )
    row = made.collect()[0]
    for name in names:
        if name not in ("s", "bin"):
            assert row[f"{name}_"] == row[name]
            assert made.schema[f"{name}_"].dataType == frame.schema[name].dataType or name == "m"
    text = tfs.map_rows(lambda s: {"t": tf.strings.join([s, s])}, frame).first()
    raw = tfs.map_rows(lambda bin: {"t": tf.strings.join([bin, bin])}, frame).first()
    assert (text.t, bytes(raw.t)) == ("ää", b"\x00\xff\x00\xff")


@pytest.mark.soak
def test_half_precision_is_stored_wider_and_read_as_it_was(spark: SparkSession) -> None:
    half = tfs.map_blocks(lambda x: {"h": tf.cast(x, tf.float16)}, doubles(spark, 3, 1))
    assert half.dtypes[1] == ("h", "float")
    again = tfs.map_blocks(lambda h: {"t": tf.fill(tf.shape(h), h.dtype.name), "d": h * 2}, half)
    assert [(row.t, row.d) for row in again.collect()] == [("float16", 0.0), ("float16", 2.0), ("float16", 4.0)]


@pytest.mark.soak
def test_spark_ml_vectors_dense_and_sparse_are_tensors_and_pass_through(spark: SparkSession) -> None:
    vectors = [Vectors.dense(1.0, 2.0, 0.0), Vectors.sparse(3, [2], [5.0]), Vectors.sparse(3, [], [])]
    frame = spark.createDataFrame([(v,) for v in vectors], ["v"])
    made = tfs.map_blocks(lambda v: {"sum": tf.reduce_sum(v, 1), "twice": v * 2}, tfs.analyze(frame)).collect()
    assert [row.sum for row in made] == [3.0, 5.0, 0.0]
    assert [row.twice for row in made] == [[2.0, 4.0, 0.0], [0.0, 0.0, 10.0], [0.0, 0.0, 0.0]]
    assert [row.v for row in made] == vectors


@pytest.mark.soak
def test_with_a_schema_nothing_is_traced_here_and_the_workers_check_it(spark: SparkSession) -> None:
    import os

    here = os.getpid()

    def elsewhere(x: Any) -> dict[str, Any]:
        assert os.getpid() != here, "traced beside the kernel"
        return {"z": x + 3}

    frame = doubles(spark, 3, 1)
    assert [row.z for row in tfs.map_blocks(elsewhere, frame, schema="z double").collect()] == [3, 4, 5]
    with pytest.raises(Exception, match=r"'z' as float32\[\?\], the function makes float64\[\?\]"):
        tfs.map_blocks(elsewhere, frame, schema="z float").collect()


@pytest.mark.soak
def test_with_a_schema_the_driver_needs_no_tensorflow(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def root(x: Any) -> dict[str, Any]:
        import tensorflow as tf

        return {"z": tf.sqrt(x)}

    keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(3.0)]).save(tmp_path / "m.keras")
    for name in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, name, None)
    frame = doubles(spark, 5, 2).where("x > 0")
    made = tfs.map_blocks(root, frame, schema="z double")
    made = tfs.predict(str(tmp_path / "m.keras"), made, features=["x"], schema="prediction array<float>")
    assert sorted((row.x, row.z, *row.prediction) for row in made.collect()) == [
        (x, pytest.approx(x**0.5), 3 * x) for x in (1.0, 2.0, 3.0, 4.0)
    ]
    with pytest.raises(UsageError, match=r"TensorFlow is not installed here.*schema="):
        tfs.map_blocks(root, frame)


@pytest.mark.soak
def test_a_function_is_traced_once_in_each_python_worker(spark: SparkSession) -> None:
    import os

    def traced(x: Any) -> dict[str, Any]:
        return {"pid": tf.fill(tf.shape(x), os.getpid()), "trace": tf.fill(tf.shape(x), tf.constant(os.urandom(8)))}

    frame = doubles(spark, 40, 8)
    seen = [
        (row.pid, bytes(row.trace))
        for _ in range(3)
        for row in tfs.map_blocks(traced, frame, schema="pid int, trace binary").collect()
    ]
    # The trace is told by random bytes that it drew: twice in a process, and there would be more of them.
    assert len({pid for pid, _ in seen}) == len(set(seen)) <= 4


@pytest.mark.soak
def test_partitions_draw_other_random_numbers_and_the_same_ones_again(spark: SparkSession) -> None:
    frame = doubles(spark, 400, 4)
    made = tfs.map_blocks(lambda x: {"z": x * 0 + tf.random.normal(tf.shape(x), seed=7, dtype=tf.float64)}, frame)
    first, again = ([row.z for row in made.orderBy("x").collect()] for _ in range(2))
    assert len(set(first)) == 400
    assert first == again


@pytest.mark.soak
def test_a_reducer_that_is_not_associative_is_refused_by_a_job_that_does_not_fail(spark: SparkSession) -> None:
    frame = doubles(spark, 10, 3)
    message = r"^the reducer makes 'x' .* associative and commutative"
    with job_group(spark, "refused"), pytest.raises(UsageError, match=message):
        tfs.reduce_blocks(lambda x_input: {"x": tf.reduce_mean(x_input, axis=0)}, frame)
    # Spark logs a task that fails, with the call stack of its own.
    assert statuses_once_ended(spark, "refused") == {"SUCCEEDED"}


def statuses_once_ended(spark: SparkSession, group: str, seconds: float = 30) -> set[str]:
    """How the jobs of a group ended. Spark's tracker hears of an end a little after the one who waits for the job."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + seconds
    while True:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        statuses = {job.status for job in jobs if job}
        if "RUNNING" not in statuses or time.monotonic() > deadline:
            return statuses
        time.sleep(0.05)


@contextmanager
def job_group(spark: SparkSession, name: str) -> Iterator[None]:
    spark.sparkContext.setJobGroup(name, name)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@pytest.mark.soak
def test_nan_is_a_value(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1.0,), (float("nan"),)], "x double")
    assert [row.z for row in tfs.map_blocks(lambda x: {"z": tf.math.is_nan(x)}, frame).collect()] == [False, True]


def test_tensorflow_takes_no_more_threads_than_a_task_has_cores(spark: SparkSession) -> None:
    def threads(x: Any) -> dict[str, Any]:
        return {"n": tf.fill(tf.shape(x), tf.config.threading.get_intra_op_parallelism_threads())}

    made = tfs.map_blocks(threads, doubles(spark, 2, 1), schema="n int")
    assert {row.n for row in made.collect()} == {1}


@pytest.mark.soak
def test_columns_that_no_function_reads_may_be_of_any_type_and_name(spark: SparkSession) -> None:
    frame = spark.sql("select 1D `a b`, date'2020-01-01' d, map('k', null) m, cast(null as int) n")
    made = tfs.map_blocks(lambda x: {"z": x}, frame, feed_dict={"x": "a b"}).first()
    assert (made["z"], made["n"], made["m"]) == (1.0, None, {"k": None})
    assert tfs.reduce_blocks(total, frame, feed_dict={"x": "a b"}) == 1.0
    odd = spark.sql("select 1D `a.b`, 2D x, 'text' `c``d`, 4 X")
    made = tfs.map_blocks(lambda x, y: {"z": x + y}, odd, feed_dict={"y": "a.b"})
    assert made.columns == ["a.b", "x", "c`d", "X", "z"]
    assert tuple(made.first()) == (1.0, 2.0, "text", 4, 3.0)
    assert tfs.reduce_blocks(total, odd, feed_dict={"x": "a.b"}) == 1.0
    with pytest.raises(DataError, match="two columns 'x': rename one"):
        tfs.map_blocks(lambda y: {"z": y}, spark.sql("select 1D x, 2D x, 3D y"))
    with pytest.raises(DataError, match=r"'m' of type map<.*> cannot become a tensor.*F.map_values"):
        tfs.map_blocks(lambda m: {"z": m}, frame)


@pytest.mark.soak
def test_dates_times_and_decimals_are_what_they_are_in_a_feed(spark: SparkSession) -> None:
    frame = spark.sql(
        "select date'1970-01-03' d, timestamp'1970-01-01 00:00:02Z' t, cast(1.25 as decimal(9, 2)) m,"
        " array(date'1970-01-05') v, named_struct('a', 1) s"
    )
    made = tfs.map_blocks(lambda d, t, m, v: {"e": d + 1, "u": t, "n": 2 * m, "k": v[:, 0]}, frame).first()
    assert (made["e"], made["u"], made["n"], made["k"]) == (3, 2_000_000, 2.5, 4)
    assert tfs.reduce_blocks(lambda d_input: {"d": tf.reduce_max(d_input)}, frame) == 2
    with pytest.raises(DataError, match=r"'s' is a struct: select its fields, for example 's.\*'"):
        tfs.map_blocks(lambda s: {"z": s}, frame)
    with pytest.raises(DataError, match=r"the schema has 'z' as date: a tensor is a column of type bigint"):
        tfs.map_blocks(lambda d: {"z": d}, frame, schema="z date")


@pytest.mark.soak
def test_k_means_finds_the_centres_that_numpy_finds(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    points = rng.normal(size=(100_000, 100)).astype(np.float32) + rng.integers(0, 10, (100_000, 1)) * 2
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    import pyarrow as pa

    table = pa.table({"p": pa.array(list(points), pa.list_(pa.float32()))})
    frame = tfs.append_shape(spark.createDataFrame(table).repartition(2), "p", [100]).cache()
    centres = expected = points[rng.choice(len(points), 10, replace=False)].astype(np.float64)
    for _ in range(10):
        centres, expected = _spark_step(frame, centres), _numpy_step(points, expected)
    frame.unpersist()
    np.testing.assert_allclose(centres, expected, rtol=1e-6, atol=1e-6)


def _spark_step(frame: DataFrame, centres: Any) -> Any:
    def partial_sums(p: Any, centres: Any) -> dict[str, Any]:
        p = tf.cast(p, tf.float64)
        distances = tf.reduce_sum(centres**2, 1) - 2 * tf.matmul(p, centres, transpose_b=True)
        nearest = tf.one_hot(tf.argmin(distances, 1), 10, dtype=tf.float64)
        return {"s": tf.matmul(nearest, p, transpose_a=True)[None], "n": tf.reduce_sum(nearest, 0)[None]}

    partials = tfs.map_blocks(partial_sums, frame, trim=True, constants={"centres": centres})
    made = tfs.reduce_blocks(
        lambda s_input, n_input: {"s": tf.reduce_sum(s_input, 0), "n": tf.reduce_sum(n_input, 0)}, partials
    )
    return np.where(made["n"][:, None] > 0, made["s"] / np.maximum(made["n"][:, None], 1), centres)


def _numpy_step(points: Any, centres: Any) -> Any:
    nearest = ((centres**2).sum(1) - 2 * points.astype(np.float64) @ centres.T).argmin(1)
    return np.array(
        [points[nearest == k].mean(0, dtype=np.float64) if (nearest == k).any() else centres[k] for k in range(10)]
    )


def test_output_names_are_checked_against_the_columns(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="'x' is the name of a column"):
        tfs.map_blocks(lambda x: {"x": x}, doubles(spark, 2, 1))
    assert tfs.map_blocks(lambda x: {"x": x}, doubles(spark, 2, 1), trim=True).columns == ["x"]


@pytest.mark.soak
def test_a_model_predicts_every_row_once_in_any_partitioning(spark: SparkSession, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="softmax")])
    model.save(tmp_path / "m.keras")
    rows = [(i, [i / 7, -i / 3, 1.0]) for i in range(100)]
    expected = np.asarray(model(np.array([values for _, values in rows], np.float32)))
    frame = spark.createDataFrame(rows, "id int, v array<double>")
    for partitions, given in ((1, model), (4, str(tmp_path / "m.keras")), (130, model)):
        made = tfs.predict(given, frame.repartition(partitions), features=["v"], batch_size=16).orderBy("id").collect()
        assert [row.id for row in made] == list(range(100))
        np.testing.assert_allclose([row.prediction for row in made], expected, rtol=1e-5, atol=1e-6)
    named = tfs.predict(model, frame, features=["v"], classes=["a", "b", "c", "d"], output="kind").orderBy("id")
    assert [row.kind for row in named.collect()] == ["abcd"[best] for best in expected.argmax(axis=1)]


@pytest.mark.soak
def test_a_model_of_two_inputs_and_outputs_predicts_a_column_for_each(spark: SparkSession) -> None:
    one, other = keras.Input((1,)), keras.Input((2,))
    model = keras.Model([one, other], [keras.layers.Dense(1)(one), keras.layers.Dense(2)(other)])
    frame = spark.createDataFrame([(float(i), [1.0 * i, 2.0]) for i in range(10)], "x double, v array<double>")
    made = tfs.predict(model, frame, features=["x", "v"], output=["p", "q"]).orderBy("x").collect()
    first, second = model([np.arange(10.0)[:, None], np.array([[i, 2.0] for i in range(10)])])
    np.testing.assert_allclose([row.p for row in made], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([row.q for row in made], second, rtol=1e-5, atol=1e-6)


def test_columns_are_selected_by_names_with_dots(spark: SparkSession) -> None:
    frame = spark.range(2).selectExpr("struct(id * 100 as b) as a", "id + 1 as `a.b`", "id")
    args = parse(TFOSMagics.tfos_map, "df --select z,a.b")
    rows = map_cell("{'z': id}", args, {"df": frame.select("a", "`a.b`", "id")}).collect()
    assert [tuple(row) for row in rows] == [(0, 1), (1, 2)]
