"""Files, records and checkpoints in an object store; one that is wrong or gone is told of, and nothing waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import tfos_magic as tfos
from tests.object_store import buckets, object_store
from tfos_magic.checkpoints.checkpoint import Checkpoint, Position, encode, split
from tfos_magic.checkpoints.store import CheckpointStore
from tfos_magic.errors import ClusterError, DataError
from tfos_magic.storage import open_system
from tfos_magic.tfrecord.writing import new_job

pytestmark = pytest.mark.slow

SECONDS = 60.0
"""For a store that does not answer, on a machine that is busy with other things."""
ROWS = pa.table({"id": np.arange(40), "half": np.arange(40, dtype=np.float32) / 2})


@pytest.fixture(scope="module", autouse=True)
def store() -> Iterator[None]:
    with object_store("there"):
        yield


def write(where: str) -> None:
    """Write the rows as two files of records."""
    job = new_job(where, "Example", False, False)
    job.commit([job.write(iter(ROWS.slice(at, 20).to_batches()), at) for at in (0, 20)])


def save(where: str) -> None:
    """Write a checkpoint."""
    with CheckpointStore(where) as checkpoints:
        position = Position(0, 1, 0, False, 11)
        data = encode(Checkpoint(position, {}, {"v0": np.arange(6.0)}))
        for part in split("run", "one", position, data):
            checkpoints.note(part)
        checkpoints.flush()


def test_records_that_are_written_are_read_by_tensorflow_names_and_workers() -> None:
    write("s3://there/records")
    names = sorted(fsspec.filesystem("s3").ls("there/records"))
    assert [name.rpartition("/")[2][:10] for name in names] == ["_SUCCESS", "part-00000", "part-00020"]
    (batch,) = tfos.dataset("s3://there/records", batch_size=40, shuffle=False).as_numpy_iterator()
    assert batch["id"].tolist() == list(range(40))
    assert batch["half"].tolist() == [number / 2 for number in range(40)]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_are_read_in_place_with_the_columns_of_their_folders(kind: str) -> None:
    system = fsspec.filesystem("s3")
    for day in (1, 2):
        with system.open(f"there/{kind}/day={day}/part-0.{kind}", "wb") as file:
            (pq.write_table if kind == "parquet" else pc.write_csv)(ROWS.slice(20 * (day - 1), 20), file)
    found = tfos.dataset(f"s3://there/{kind}", batch_size=20, shuffle=False, features=["id"], label="day")
    assert [(x[0], set(y)) for x, y in found.as_numpy_iterator()] == [(0, {1}), (20, {2})]


def test_a_run_goes_on_from_a_checkpoint_there() -> None:
    save("s3://there/checkpoints")
    with CheckpointStore("s3://there/checkpoints", resume=True) as again:
        assert again.newest == Position(0, 1, 0, False, 11)


@pytest.mark.parametrize(("act", "error"), [(write, DataError), (save, ClusterError)])
@pytest.mark.parametrize("path", ["", "/some/where"])
def test_no_bucket_is_made(act: Callable[[str], None], error: type[Exception], path: str) -> None:
    with pytest.raises(error, match=r"there is no bucket 'no-such-bucket': correct the path, or make the bucket"):
        act(f"s3://no-such-bucket{path}")
    assert "no-such-bucket" not in buckets()
    with pytest.raises(DataError, match="there is no bucket 'no-such-bucket': correct the path"):
        tfos.dataset(f"s3://no-such-bucket{path}", batch_size=2)


@pytest.mark.parametrize(
    ("act", "error", "works"),
    [
        (lambda: tfos.dataset("s3://there/x", batch_size=2), DataError, False),
        (lambda: save("s3://there/checkpoints"), ClusterError, True),
        (lambda: write("s3://there/more"), DataError, True),
    ],
)
def test_an_address_that_is_none_is_told_of_and_one_that_is_mended_is_used(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], error: type[Exception], works: bool
) -> None:
    open_system("s3://there/x")[0].ls("there")  # by a file system that fsspec keeps, with the address
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
        with pytest.raises(error, match=r"Invalid endpoint: 127\.0\.0\.1:9000.*See that .* its address"):
            act()
    with nullcontext() if works else pytest.raises(error, match="there is nothing at 's3://there/x'"):
        act()


def test_what_is_not_in_a_bucket_that_there_is_is_told_of() -> None:
    with pytest.raises(DataError, match="there is nothing at 's3://there/no/such/folder'"):
        tfos.dataset("s3://there/no/such/folder", batch_size=2)


@pytest.mark.soak
def test_a_store_that_is_gone_is_told_of_in_time() -> None:
    with object_store("there") as server:
        write("s3://there/records")
        found = tfos.dataset("s3://there/records", batch_size=2)
        server.stop()
        expected = {
            "bucket 'there'.*Could not connect.*See that the store runs": (lambda: write("s3://there/more"), DataError),
            "s3://there/records' cannot be listed: Could not connect.*See that the store runs": (
                lambda: tfos.dataset("s3://there/records", batch_size=2),
                DataError,
            ),
            "DataError: s3://there/records/part.* cannot be read as TFRecord: Could not connect": (
                lambda: list(found),
                tf.errors.OpError,
            ),
            "Cannot list the checkpoint directory 's3://there/.*Could not connect.*See that the store runs": (
                lambda: save("s3://there/checkpoints"),
                ClusterError,
            ),
        }

        def told(text: str) -> float:
            act, error = expected[text]
            began = time.monotonic()
            with pytest.raises(error, match=text):
                act()
            return time.monotonic() - began

        with ThreadPoolExecutor(len(expected)) as pool:
            assert max(pool.map(told, expected)) < SECONDS
