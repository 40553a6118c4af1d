"""A program for TensorFlowOnSpark runs unedited, by the module's command line, on executors without a slot to spare."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest

from tests.jvm import EXECUTORS
from tests.standalone import standalone as standalone

pytestmark = pytest.mark.timeout(300)
SECONDS = 280
ROWS, WEIGHTS = 480, (3.14, 1.618)
CONF = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    **EXECUTORS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


def ran(folder: Path, *parts: str, program: str = "program.py", conf: Mapping[str, str] = CONF) -> str:
    """What a program printed, once it has ended."""
    path = str(Path(__file__).with_name(program))
    command = [sys.executable, "-m", "tfos_magic.tensorflowonspark", path, str(folder), json.dumps(conf), *parts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
    assert "Failed to launch executor" not in done.stderr  # by a SparkContext that ended with Python
    return done.stdout + done.stderr


def told_by(folder: Path, part: str, conf: Mapping[str, str] = CONF) -> dict[str, Any]:
    """What a part of the program tells."""
    printed = ran(folder, part, conf=conf)
    said = [line for line in printed.splitlines() if line.startswith("told ")]
    assert said, printed[-8000:]
    told: dict[str, Any] = json.loads(said[0].removeprefix("told "))
    return told | {"printed": printed}


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return told_by(folder, "by themselves")


@pytest.fixture(scope="module")
def told_of_the_rest(folder: Path) -> dict[str, Any]:
    return told_by(folder, "the rest")


def test_workers_in_lockstep_train_on_rows_of_their_own_to_the_weights_of_one_process(
    told: dict[str, Any], folder: Path
) -> None:
    assert told["roles"] == [["chief", 0], ["worker", 0]]
    assert_trained(folder)


def assert_trained(folder: Path) -> None:
    """That the program's weights are those of one process with the rows of both workers."""
    x = np.array([[i % 16 / 8 - 1, i % 5 / 2 - 1] for i in range(ROWS)], "float32")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.02), "mse")
    steps = 11  # 10.4, as Keras 2 took it
    model.fit(
        x[: 32 * steps], (x @ np.array(WEIGHTS, "float32"))[: 32 * steps], batch_size=32, shuffle=False, verbose=0
    )
    trained = np.load(folder / "trained.npz")
    for mine, theirs in zip(model.get_weights(), trained.values(), strict=True):
        np.testing.assert_allclose(theirs, mine, atol=1e-6)


def test_a_node_knows_its_role(told: dict[str, Any], folder: Path) -> None:
    role = json.loads((folder / "trained.json").read_text())
    assert role["replicas"] == 2
    assert {job: len(nodes) for job, nodes in role["spec"].items()} == {"chief": 1, "worker": 1}
    assert json.loads(role["config"])["task"] == {"type": "chief", "index": 0}
    assert json.loads(role["config"])["cluster"] == role["spec"]


def test_checkpoints_of_keras_2_are_written_with_the_ending_of_keras_3(told: dict[str, Any], folder: Path) -> None:
    assert (folder / "weights-0001.weights.h5").is_file()


def test_every_row_is_answered_in_its_order_by_both_nodes(told: dict[str, Any]) -> None:
    assert told["squares"] is True
    assert told["nodes that answered"] == [0, 1]


def test_a_failure_is_raised_in_the_driver_with_its_node_and_costs_no_context(told: dict[str, Any]) -> None:
    assert "ValueError on worker 1 on 127.0.0.1: this node does not like its rows" in told["failure"]
    assert 'raise ValueError("this node' in told["failure"]
    assert told["seconds to it"] < 15  # three on a quiet machine
    assert told["counted after it"] == 10


@pytest.mark.soak
def test_programs_that_know_nothing_of_each_other_write_where_they_say(told_of_the_rest: dict[str, Any]) -> None:
    assert told_of_the_rest["written"] == ["0 of 2", "1 of 2"]


@pytest.mark.soak
def test_a_pipeline_finds_the_line_and_predicts_by_what_was_exported(told_of_the_rest: dict[str, Any]) -> None:
    assert told_of_the_rest["furthest from the line"] < 1e-2
    assert told_of_the_rest["predicted alike"] is True


@pytest.mark.soak
def test_tfrecords_are_read_as_they_were_written(told_of_the_rest: dict[str, Any]) -> None:
    assert told_of_the_rest["read back"] == [[["x", "array<double>"], ["y", "double"]], ROWS, True, False]
    assert "Feature 'b' has bytes that are not UTF-8: name it in binary_features" in told_of_the_rest["no text"]
    assert told_of_the_rest["bytes"] == [255, 0]


@pytest.mark.soak
def test_a_program_that_exits_early_is_told_of_the_rows_that_it_leaves(told_of_the_rest: dict[str, Any]) -> None:
    assert "The program returned before it had read 'input' to its end" in told_of_the_rest["printed"]


@pytest.mark.soak
def test_streams_feed_their_rows_as_they_come_and_a_failed_one_is_an_error(folder: Path) -> None:
    told = told_by(folder, "streams")
    assert told["of a DataFrame"] == sum(range(30)) + sum(range(100, 110))
    assert told["of a DStream"] == sum(range(20))
    assert "The streaming query that fed the programs failed" in told["failure"]
    assert "these rows are bad" in told["failure"]


@pytest.mark.soak
def test_a_standalone_cluster_runs_it_as_well(standalone: str, tmp_path: Path) -> None:
    sized = {"spark.master": standalone, "spark.cores.max": "2", "spark.executor.cores": "1"}
    told = told_by(tmp_path, "by themselves", CONF | sized | {"spark.driver.host": "127.0.0.1"})
    assert_trained(tmp_path)
    assert told["nodes that answered"] == [0, 1]
    assert "this node does not like its rows" in told["failure"]
    assert told["counted after it"] == 10


@pytest.mark.soak
@pytest.mark.parametrize("program", ["segmentation.py", "resnet.py"])
def test_larger_programs_train_to_the_weights_of_one_process(program: str, tmp_path: Path) -> None:
    printed = ran(tmp_path, program=program)
    alone = [sys.executable, str(Path(__file__).with_name(program)), str(tmp_path)]
    subprocess.run(alone, capture_output=True, check=True, timeout=SECONDS)
    assert (tmp_path / "two.npz").is_file(), printed[-8000:]
    one, two = np.load(tmp_path / "one.npz"), np.load(tmp_path / "two.npz")
    for name, expected in one.items():
        np.testing.assert_allclose(two[name], expected, atol=1e-10, err_msg=name)


def test_nothing_is_left_of_it(told: dict[str, Any], folder: Path) -> None:
    left = [
        p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or ())
    ]
    assert not left
