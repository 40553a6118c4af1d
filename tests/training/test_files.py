"""Files that ranks read in place: ``sync`` gives the weights of one process that reads the same batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_history, assert_same_weights, succeeded
from tests.training.harness import DATA

ROWS = 131
FIT = """
model = mlp()
model.compile(keras.optimizers.Adam(0.01), from_logits, metrics=["accuracy"])
history = model.fit(data, epochs=3, verbose=0).history
weights = model.get_weights()
"""
COMPOSED = """
from tfos_magic.training import ranks
from tfos_magic.training.collectives import Collectives
from tfos_magic.training.context import RunContext, StopSignal

shares = []
for rank in range(world):
    run = RunContext("run", Collectives(rank, world), print, StopSignal(), strategy="none", seed=7)
    with ranks.current(run):
        shares.append(tfos.dataset(folder, batch_size=29, features=["x"], label="y"))


def batches():
    for parts in zip(*shares):
        yield tuple(tf.concat(columns, 0) for columns in zip(*parts))


data = tf.data.Dataset.from_generator(batches, output_signature=shares[0].element_spec)
data = data.apply(tf.data.experimental.assert_cardinality(5))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A classification problem in three Parquet files of several row groups."""
    path = tmp_path_factory.mktemp("rows")
    drawn = np.random.default_rng(5).normal(size=(ROWS, 12)).astype("float32")
    table = pa.table({"x": list(drawn), "y": (drawn[:, 0] > 0).astype("int64") + (drawn[:, 1] + drawn[:, 2] > 0)})
    for number, (start, stop) in enumerate([(0, 60), (60, 67), (67, ROWS)]):
        pq.write_table(table.slice(start, stop - start), path / f"part-{number}.parquet", row_group_size=11)
    return str(path)


def cell(folder: str, made: str, world: int = 1) -> str:
    return DATA + f"import tfos_magic as tfos\nfolder, world = {folder!r}, {world}\n" + made + FIT


@pytest.mark.parametrize("size", every(3, [3, 1, 2]))
def test_files_in_order_give_the_weights_of_one_process(
    same_as_plain: Callable[..., Any], folder: str, size: int
) -> None:
    # Two files, fewer than the most ranks: one rank has none to count.
    in_order = "data = tfos.dataset(folder + '/part-[02].*', batch_size=29, features=['x'], label='y', shuffle=False)"
    same_as_plain(cell(folder, in_order), size)


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 3])
def test_shuffled_files_give_the_weights_of_one_process_that_reads_the_same_batches(
    groups: Any, folder: str, size: int
) -> None:
    expected = groups.plain(cell(folder, COMPOSED, size), "weights", "history").values
    made = "data = tfos.dataset(folder, batch_size=29, features=['x'], label='y')"
    outcomes = succeeded(groups[size].run(cell(folder, made), "weights", "history"))
    assert_same_weights(outcomes, expected["weights"], 1e-5)
    assert_same_history(outcomes[0].values["history"], expected["history"])


def test_ranks_that_see_different_files_all_say_so(groups: Any, tmp_path: Path) -> None:
    for rank, rows in enumerate([3, 4]):
        (tmp_path / f"host{rank}").mkdir()
        pq.write_table(pa.table({"x": range(rows)}), tmp_path / f"host{rank}" / "a.parquet")
    outcomes = groups[2].run(
        f"import tfos_magic as tfos\ndata = tfos.dataset({str(tmp_path)!r} + f'/host{{rank}}', batch_size=2)"
    )
    assert [outcome.kind for outcome in outcomes] == ["DataError"] * 2
    assert all("ranks 0 and 1 find different files" in outcome.error for outcome in outcomes)


def test_a_rank_that_cannot_read_the_files_holds_up_nobody(groups: Any, folder: str, tmp_path: Path) -> None:
    outcomes = groups[2].run(
        f"import tfos_magic as tfos\ndata = tfos.dataset({[folder, str(tmp_path / 'gone')]!r}[rank], batch_size=2)"
    )
    assert [outcome.kind for outcome in outcomes] == ["ClusterError", "DataError"], "the notebook shows the latter"
    assert "rank 1 cannot read the files" in outcomes[0].error
    assert "there is nothing at" in outcomes[1].error
