"""What rank 0's cell writes for TensorBoard is with the notebook as it grows, and whole when the run is over."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.soak import every
from tests.training.conftest import succeeded
from tests.training.harness import DATA, Group
from tfos_magic.cluster.runs.state import RunState
from tfos_magic.tensorboard.event_files import EventMirror
from tfos_magic.transport.messages import EventFilePart

WRITTEN = (
    DATA
    + """
import os, tempfile
os.chdir(elsewhere)
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"])
fit = dict(x=x, y=y, batch_size=29, verbose=0, epochs=3, validation_data=(val_x, val_y))
board = keras.callbacks.TensorBoard(log_dir="logs/fit", histogram_freq=1, write_graph=False)
history = model.fit(**fit, callbacks=[board]).history
with tf.summary.create_file_writer(os.path.join(tempfile.mkdtemp(dir="."), "own")).as_default():
    for step in range(3):
        tf.summary.scalar("mine", step * 0.5, step=step)
"""
)


class Notebook:
    """The kernel's side of a run, which knows nothing of the workers' folders."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs" / "run-1"
        self.state = RunState("", "run 1", "sync", [], log_dir=str(self.root))
        self.mirror = EventMirror(self.state)
        self.ranks: set[int] = set()

    def hear(self, rank: int, message: Any) -> None:
        if isinstance(message, EventFilePart):
            self.ranks.add(rank)
            self.mirror.take(message)

    def scalars(self, folder: Path) -> dict[str, list[float]]:
        events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
        return {
            tag: [float(make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
            for tag in events.Tags()["tensors"]
            if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
        }


@pytest.fixture(autouse=True)
def reader_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's own switch for its pure Python reader; with TensorFlow it takes seconds to load."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    (tmp_path / "worker").mkdir()
    return Notebook(tmp_path)


@pytest.mark.soak
def test_the_cells_own_callback_and_writer_arrive_byte_for_byte(groups, notebook: Notebook, tmp_path: Path) -> None:
    elsewhere = tmp_path / "worker"
    run = groups[2].run
    outcomes = succeeded(run(WRITTEN, "history", inputs={"elsewhere": str(elsewhere)}, on_message=notebook.hear))
    history = outcomes[0].values["history"]

    originals = {file.relative_to(elsewhere): file.read_bytes() for file in elsewhere.rglob("*tfevents*")}
    copies = {file.relative_to(notebook.root): file.read_bytes() for file in notebook.root.rglob("*tfevents*")}
    assert notebook.ranks == {0}
    of_rank_0 = {path for path in originals if path.parent.name != "own"}
    assert {path.parent.name for path in of_rank_0} == {"train", "validation"}
    assert of_rank_0 | {path for path in copies if path.parent.name == "own"} == set(copies)
    assert copies == {path: originals[path] for path in copies}

    train = notebook.scalars(notebook.root / "logs" / "fit" / "train")
    assert train["epoch_loss"] == pytest.approx(history["loss"], rel=1e-6)
    validation = notebook.scalars(notebook.root / "logs" / "fit" / "validation")
    assert validation["epoch_accuracy"] == pytest.approx(history["val_accuracy"], rel=1e-6)
    (own,) = notebook.root.rglob("own")
    assert notebook.scalars(own) == {"mine": [0.0, 0.5, 1.0]}
    assert notebook.state.notices == []


GATED = (
    DATA
    + """
import os, time
os.chdir(elsewhere)
model = mlp()
model.compile("sgd", from_logits)
def wait(epoch, logs):
    tf.summary.scalar("mine", 1.0, step=epoch)
    deadline = time.monotonic() + 60
    while epoch == 0 and not os.path.exists(os.path.join(elsewhere, "go")):
        if time.monotonic() > deadline:
            raise TimeoutError("no event file came to the notebook within 60 s")
        time.sleep(0.02)
callbacks = [keras.callbacks.TensorBoard("."), keras.callbacks.LambdaCallback(on_epoch_end=wait)]
with tf.summary.create_file_writer("own").as_default():  # which is flushed at its end
    model.fit(x, y, batch_size=29, verbose=0, epochs=2, callbacks=callbacks)
"""
)


@pytest.mark.parametrize("strategy", every(2, ["sync", "local"]))
def test_an_epoch_is_with_the_notebook_while_the_next_one_waits(
    groups, notebook: Notebook, tmp_path: Path, strategy: str
) -> None:
    def hear(rank: int, message: Any) -> None:
        notebook.hear(rank, message)
        train = notebook.root / "cell" / "train"  # beside the run's own scalars, whose folder is called train
        seen = [notebook.scalars(folder) for folder in (train, notebook.root / "own") if folder.is_dir()]
        if [len(found.get(tag, ())) for found, tag in zip(seen, ("epoch_loss", "mine"), strict=False)] == [1, 1]:
            (tmp_path / "worker" / "go").touch()

    inputs = {"elsewhere": str(tmp_path / "worker")}
    succeeded(groups[2].run(GATED, inputs=inputs, on_message=hear, strategy=strategy))
    assert len(notebook.scalars(notebook.root / "cell" / "train")["epoch_loss"]) == 2


FAILING = (
    DATA
    + """
import os
os.chdir(elsewhere)
writer = tf.summary.create_file_writer("logs")
os.chdir("/")
with writer.as_default():
    tf.summary.scalar("before", 1.0, step=0)
raise ValueError("and then it failed")
"""
)


def test_what_was_written_before_an_error_arrives_and_nothing_of_runs_before(
    groups, notebook: Notebook, tmp_path: Path
) -> None:
    inputs = {"elsewhere": str(tmp_path / "worker")}
    first = groups[2].run(FAILING, inputs=inputs)
    assert first[0].kind == "ValueError"
    groups[2].run(FAILING, inputs=inputs, on_message=notebook.hear)
    files = [file for file in (notebook.root / "logs").iterdir()]
    assert len(files) == 1
    assert notebook.scalars(notebook.root / "logs") == {"before": [1.0]}


def test_what_is_too_much_is_left_out_and_said(tmp_path: Path) -> None:
    prepare = "from tfos_magic.training.keras_seam import summary_files\nsummary_files.FILE_BYTES = 100_000"
    cell = (
        DATA
        + """
import os
os.chdir(elsewhere)
with tf.summary.create_file_writer("logs").as_default():
    for step in range(40):
        tf.summary.text("long", "x" * 10_000, step=step)
"""
    )
    notices: list[str] = []
    sizes: list[int] = []

    def hear(rank: int, message: Any) -> None:
        if isinstance(message, EventFilePart):
            sizes.append(message.offset + len(message.payload))
        elif hasattr(message, "text"):
            notices.append(message.text)

    group = Group(1, prepare=prepare)
    try:
        succeeded(group.run(cell, inputs={"elsewhere": str(tmp_path)}, on_message=hear))
    finally:
        group.close()
    assert all(size <= 100_000 for size in sizes)
    (notice,) = notices
    assert "are sent to the notebook: the limits are" in notice
