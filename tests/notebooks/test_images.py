"""Images: a ResNet decodes PNG files in the workers, and in a mirror only the model with augmentation knows them."""

from __future__ import annotations

import re

import pyarrow.parquet as pq
import pytest

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

TRAIN = "%%tfos_train --features png --label kind --batch-size 40 --seed 1 -o "
KINDS = ["disc", "ring", "moon", "triangle", "square", "cross", "star", "stripes", "checks", "dots"]


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("17_images")


@pytest.fixture(scope="module")
def shares(executed: Executed) -> dict[str, list[float]]:
    """By kind: images, and the share of right answers without augmentation, mirrored, with augmentation, mirrored."""
    rows = re.findall(r"^\| *([a-z]+)\|(.*\d.*)\|$", executed.text("scored.write.mode"), re.MULTILINE)
    return {kind: [float(value) for value in values.split("|")] for kind, values in rows}


def test_the_column_holds_png_files_of_ten_kinds(executed: Executed) -> None:
    images = pq.read_table(executed.folder / "data" / "images").to_pandas()
    assert images["png"].map(lambda file: file[:8] == b"\x89PNG\r\n\x1a\n").all()
    assert sorted(images["kind"].value_counts()) == [230] * 10
    assert "1,000 to train on, 300 to validate, 1,000 to test" in executed.text("KINDS = ")


def test_both_trainings_learn_and_the_images_are_fed_once(executed: Executed) -> None:
    for outputs in ("plain_history", "augmented_history"):
        told = re.findall(r"^epoch \d+ of 12 .*val_accuracy (\S+)", executed.text(TRAIN + outputs), re.MULTILINE)
        assert len(told) == 12
        assert float(told[-1]) > 0.75
    again = executed.text(TRAIN + "augmented_history")
    assert again.count("already on the workers") == 2
    assert "Random numbers in a step (random_flip)" in again


def test_augmentation_slows_learning(executed: Executed) -> None:
    told = re.findall(r"augmentation: (\S+) in training", executed.text("figure, axes = plt.subplots(1, 2"))
    without, with_it = map(float, told)
    assert with_it < without


def test_only_augmentation_knows_moons_and_triangles_in_the_mirror(shares: dict[str, list[float]]) -> None:
    assert list(shares) == [*KINDS, "all"]
    for kind in ("moon", "triangle"):
        _, plain, plain_mirrored, _, augmented_mirrored = shares[kind]
        assert plain_mirrored < plain - 0.3
        assert augmented_mirrored > plain_mirrored + 0.2
    others = [shares[kind] for kind in KINDS if kind not in ("moon", "triangle")]
    assert sum(abs(row[1] - row[2]) for row in others) / len(others) < 0.1
    _, plain, plain_mirrored, augmented, augmented_mirrored = shares["all"]
    assert min(plain, augmented) > 0.75
    assert abs(augmented - augmented_mirrored) < 0.05 < plain - plain_mirrored


def test_the_confusion_table_counts_all_images(executed: Executed) -> None:
    rows = re.findall(r"^\| *([a-z]+)\|(.*\d.*)\|$", executed.text("columns = "), re.MULTILINE)
    assert [kind for kind, _ in rows] == KINDS
    counts = [[int(value) for value in values.split("|")] for _, values in rows]
    read = pq.read_table(executed.folder / "data" / "images_read").to_pandas()
    assert sum(map(sum, counts)) == len(read) == 1000
    assert sum(row[i] for i, row in enumerate(counts)) == (read["augmented"] == read["kind"]).sum()


def test_misread_images_are_shown(executed: Executed) -> None:
    assert len(executed.pictures("worst = ")) == 1


def test_it_takes_less_than_three_minutes_and_leaves_nothing(executed: Executed) -> None:
    assert executed.seconds < 180
    assert executed.left == []
