"""The panel and TensorBoard: what runs write for TensorBoard is there, and can be read back as the text does."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.event_pb2 import Event

from tests.notebooks.conftest import RunNotebook
from tests.notebooks.running import Executed

pytestmark = pytest.mark.soak

SLOW = "%%tfos_train --features pixels --label digit --batch-size 64 --seed 1 --log-dir runs\nmodel ="
FAST = "%%tfos_train --features pixels --label digit --batch-size 64 --seed 1 --log-dir runs --tensorboard"
OWN = "%%tfos_train --features pixels --label digit --batch-size 64 --seed 1 --log-dir runs\nimport keras"
EPOCHS = 12


@pytest.fixture(scope="module")
def executed(run_notebook: RunNotebook) -> Executed:
    return run_notebook("04_tensorboard_and_panel")


def _values(folder: Path, tag: str) -> list[Any]:
    """The values whose tag ends with ``tag`` in the one event file of ``folder``, in order."""
    (file,) = folder.glob("events.out.tfevents.*")
    events = map(Event.FromString, _records(file.read_bytes()))
    return [value for event in events for value in event.summary.value if value.tag.endswith(tag)]


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _runs(executed: Executed) -> list[Path]:
    return sorted((executed.folder / "runs").iterdir())


def test_every_run_has_its_curves_in_a_folder_of_its_own(executed: Executed) -> None:
    slow, fast, own = _runs(executed)
    for folder, part, source in ((slow, "validation", SLOW), (fast, "validation", FAST), (own, "train", OWN)):
        losses = [value.tensor.float_val[0] for value in _values(folder / part, "epoch_loss")]
        name = "val_loss" if part == "validation" else "loss"
        told = re.findall(rf"^epoch .* · {name} (\d+\.?\d*)", executed.text(source), re.MULTILINE)
        assert len(losses) == EPOCHS
        assert losses == pytest.approx([float(loss) for loss in told], rel=1e-3)


def test_the_larger_learning_rate_gets_further(executed: Executed) -> None:
    slow, fast, _ = _runs(executed)
    ends = [_values(folder / "validation", "epoch_loss")[-1].tensor.float_val[0] for folder in (slow, fast)]
    assert ends[1] < ends[0] / 2
    accuracy = re.findall(r"val_accuracy (\d\.\d+)", executed.text(FAST))
    assert float(accuracy[-1]) > 0.9


def test_pictures_and_histograms_of_the_cells_own_writers_are_copied(executed: Executed) -> None:
    logs = _runs(executed)[-1] / "logs"
    pictures = _values(logs / "templates", "templates")
    assert len(pictures) == EPOCHS
    width, height, *images = pictures[-1].tensor.string_val
    assert (width, height, len(images)) == (b"8", b"8", 10)
    assert all(image.startswith(b"\x89PNG") for image in images)
    assert len(_values(logs / "fit" / "train", "templates/kernel/histogram")) == EPOCHS


def test_tensorboard_is_shown_with_the_run_and_again_after_it_and_ends(executed: Executed) -> None:
    address = r"TensorBoard of \S+/runs: http://127\.0\.0\.1:\d+/[\w-]+/"
    during, after = (re.search(address, executed.text(source)) for source in (FAST, "%tfos tensorboard --height"))
    assert during is not None
    assert after is not None
    assert during[0] == after[0]
    assert any("tensorboard" in line for line in executed.running_after("%tfos tensorboard --height"))
    assert not any("tensorboard" in line for line in executed.running_after("%tfos tensorboard --stop"))


def test_the_time_the_curves_and_the_templates_are_drawn(executed: Executed) -> None:
    for beginning in ("%tfos status -o status", "import matplotlib", "import io"):
        assert len(executed.pictures(beginning)) == 1
