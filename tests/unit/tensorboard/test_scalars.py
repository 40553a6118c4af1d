"""What ScalarWriter leaves on disk, read by TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from tfos_magic.errors import UsageError
from tfos_magic.tensorboard.scalars import ScalarWriter
from tfos_magic.transport.messages import EpochEnd

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def reader_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's own switch for its pure Python reader; with TensorFlow it takes seconds to load."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag to ``(step, value)`` pairs, as TensorBoard sees them."""
    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def test_each_epoch_is_one_step_of_the_tags_keras_uses(tmp_path: Path) -> None:
    with ScalarWriter(str(tmp_path)) as writer:
        writer.epoch(0, {"loss": 0.5, "accuracy": 0.75, "val_loss": 0.625, "val_accuracy": 0.25})
        writer.epoch(1, {"loss": 0.25, "accuracy": 0.875, "val_loss": 0.5, "val_accuracy": 0.375})
    assert read(tmp_path / "train") == {"epoch_loss": [(0, 0.5), (1, 0.25)], "epoch_accuracy": [(0, 0.75), (1, 0.875)]}
    assert read(tmp_path / "validation") == {
        "epoch_loss": [(0, 0.625), (1, 0.5)],
        "epoch_accuracy": [(0, 0.25), (1, 0.375)],
    }


def test_scalars_carry_the_plugin_that_draws_them(tmp_path: Path) -> None:
    with ScalarWriter(str(tmp_path)) as writer:
        writer.epoch(0, {"loss": 1.0})
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    assert events.SummaryMetadata("epoch_loss").plugin_data.plugin_name == "scalars"


def test_an_epoch_can_be_read_before_the_writer_is_closed(tmp_path: Path) -> None:
    writer = ScalarWriter(str(tmp_path))
    writer.epoch(0, {"loss": 0.5})
    seen = read(tmp_path / "train")
    writer.close()
    assert seen == {"epoch_loss": [(0, 0.5)]}


def test_a_run_without_validation_leaves_no_validation_folder(tmp_path: Path) -> None:
    with ScalarWriter(str(tmp_path)) as writer:
        writer.epoch(0, {"loss": 0.5})
    assert [folder.name for folder in tmp_path.iterdir()] == ["train"]


def test_a_second_run_in_the_same_folder_keeps_the_first(tmp_path: Path) -> None:
    for run in range(2):
        with ScalarWriter(str(tmp_path)) as writer:
            writer.epoch(run, {"loss": float(run)})
    assert len(list((tmp_path / "train").iterdir())) == 2


def test_a_loss_that_is_not_a_number_is_written_as_such(tmp_path: Path) -> None:
    with ScalarWriter(str(tmp_path)) as writer:
        writer.epoch(0, {"loss": math.nan, "val_loss": math.inf})
    assert math.isnan(read(tmp_path / "train")["epoch_loss"][0][1])
    assert read(tmp_path / "validation")["epoch_loss"] == [(0, math.inf)]


def test_a_log_directory_elsewhere_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="give a local path"):
        ScalarWriter("s3://bucket/logs")


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    with ScalarWriter(f"file://{tmp_path}/logs") as writer:
        writer.epoch(0, {"loss": 0.5})
    assert (tmp_path / "logs" / "train").is_dir()


def test_writing_scalars_does_not_load_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from tfos_magic.tensorboard.scalars import ScalarWriter\n"
        f"with ScalarWriter({str(tmp_path)!r}) as writer: writer.epoch(0, {{'loss': 1.0}})\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_each_fit_has_curves_of_its_own_of_which_a_restart_takes_back_what_is_trained_again(tmp_path: Path) -> None:
    def end(epoch: int, loss: float, fit: int = 0, past: bool = False) -> EpochEnd:
        return EpochEnd("run", 0, epoch, 2, {"loss": loss}, past=past, fit=fit)

    with ScalarWriter(str(tmp_path)) as writer:
        writer.await_rewind()  # as a run begins, which goes on from a checkpoint
        for told in (end(0, 4.0, past=True), end(1, 3.0), end(0, 2.0, 1), end(1, 1.0, 1)):
            writer.take(told)
        writer.await_rewind()
        for told in (end(0, 2.0, 1, past=True), end(1, 0.5, 1)):
            writer.take(told)
    assert read(tmp_path / "train") == {"epoch_loss": [(0, 4.0), (1, 3.0)]}
    assert read(tmp_path / "fit-2" / "train") == {"epoch_loss": [(0, 2.0), (1, 0.5)]}
