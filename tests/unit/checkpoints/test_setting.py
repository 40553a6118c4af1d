"""A run that goes on with other rows does so at the beginning of an epoch, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.checkpoints.test_store import ARRAYS, labels_of, put
from tfos_magic.checkpoints.checkpoint import Checkpoint, Position
from tfos_magic.checkpoints.setting import Setting
from tfos_magic.checkpoints.store import CheckpointStore
from tfos_magic.errors import UsageError

MARK = [131, 7, 8, 9, 10]
THEN = Setting("sync", 2, 32, True, {"train": MARK})
OTHERS = [
    (replace(THEN, batch_size=64), "batches of 64 rows instead of 32"),
    (replace(THEN, workers=3), "3 workers instead of 2"),
    (replace(THEN, shuffle=False), "rows in their order, not shuffled"),
    (replace(THEN, strategy="local"), "strategy local instead of sync"),
    (replace(THEN, feeds={"train": [130, 7, 8, 9, 10]}), "train with 130 rows instead of 131"),
    (replace(THEN, feeds={"train": [131, 7, 0, 0, 10]}), "train with other rows"),
    (replace(THEN, feeds={"of_another_name": [131, 7, 0, 0, 10]}), "of_another_name with other rows"),
    (replace(THEN, feeds={"train": [131, 7, 8, 0, 10]}), "train with its rows in another order"),
    (replace(THEN, feeds={"train": [131, 7, 8, 9, 0]}), "train with its rows in other partitions"),
]
UNFED, ORDERED = replace(THEN, feeds={}), replace(THEN, shuffle=False)
ALIKE = [
    (THEN, THEN),
    (UNFED, replace(UNFED, workers=3, batch_size=64)),
    (ORDERED, replace(ORDERED, workers=3, feeds={"train": [131, 7, 8, 9, 0]})),
    (replace(THEN, feeds={"train": []}), THEN),
    (THEN, replace(THEN, feeds={"of_another_name": THEN.feeds["train"]})),
]


def fill(where: Path, *positions: tuple[int, int]) -> None:
    with CheckpointStore(str(where), 1) as store:
        for epoch, step in positions:
            put(store, Checkpoint(Position(0, epoch, step, False, 1), {"setting": THEN.meta()}, ARRAYS))


@pytest.mark.parametrize(("now", "said"), OTHERS, ids=[said for _, said in OTHERS])
def test_with_other_rows_a_run_goes_back_to_the_beginning_of_its_epoch(tmp_path: Path, now: Setting, said: str) -> None:
    fill(tmp_path, (1, 0), (1, 4), (2, 0), (2, 4), (2, 8))
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert labels_of(store, now) == ["fit0-epoch2-step0"]
        assert store.newest == Position(0, 2, 0, False, 1)
        assert labels_of(store, THEN) == ["fit0-epoch2-step8"]
    (notice,) = notices
    assert said in notice
    assert "cannot go on from epoch 3, step 9" in notice
    assert notice.endswith("It goes back to epoch 3, and may end with other weights than an undisturbed run.")


@pytest.mark.parametrize(("then", "now"), ALIKE)
def test_what_leaves_the_order_of_rows_as_it_was_is_no_reason_to_go_back(then: Setting, now: Setting) -> None:
    assert now.unlike(then.meta()) == []


def test_the_beginning_of_an_epoch_is_gone_on_from_and_the_difference_said(tmp_path: Path) -> None:
    fill(tmp_path, (1, 4), (2, 0))
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert labels_of(store, replace(THEN, batch_size=64)) == ["fit0-epoch2-step0"]
    assert notices == ["From epoch 3 on, the run has batches of 64 rows instead of 32."]


def test_in_the_first_epoch_the_run_begins_anew(tmp_path: Path) -> None:
    fill(tmp_path, (0, 4))
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        assert labels_of(store, replace(THEN, batch_size=64)) == []
        assert store.newest is None
    assert "starts over" in notices[0]


def test_a_resumed_run_that_would_lose_its_epochs_is_refused_and_a_restarted_one_begins_anew(tmp_path: Path) -> None:
    fill(tmp_path, (2, 0), (2, 4))
    next(tmp_path.rglob("*-step0.npz")).write_bytes(b"damaged")
    notices: list[str] = []
    with CheckpointStore(str(tmp_path), resume=True, notify=notices.append) as store:
        with pytest.raises(UsageError, match=r"64 rows instead of 32.* leave out --resume"):
            labels_of(store, replace(THEN, batch_size=64))
        assert labels_of(store, replace(THEN, batch_size=64)) == []
    assert notices[-1].endswith("It starts over.")
