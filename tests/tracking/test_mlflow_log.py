"""What MLflow has of a run, in a store of its own; no server, and no run that is trained."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest

from tests.unit.notebook.views.simulated import ToldRun, epoch_end, finish, tell
from tfos_magic.errors import UsageError
from tfos_magic.tracking import mlflow_log
from tfos_magic.tracking.mlflow_log import MlflowLog, log_to_mlflow


class Told(ToldRun):
    """A run that tells what is tested here, with the names that it brought back."""

    def __init__(self, **names: float) -> None:
        super().__init__(**names)
        self.request = SimpleNamespace(source="model.fit(x)")
        self.result: dict[str, Any] = {}
        self.done = False

    def told(self, *messages: Any) -> None:
        tell(self.state, *messages)
        for callback in self.callbacks:
            callback(self)

    def end(self, status: str = "ok", **result: Any) -> None:
        finish(self.state, status)
        self.result, self.done = result, True
        self.told()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file://{tmp_path}/store")
    yield str(tmp_path)
    mlflow.set_tracking_uri(before)


def log(run: Told, experiment: str = "") -> MlflowLog:
    handle: Any = run
    return log_to_mlflow(handle, experiment)


def steps(run_id: str, metric: str) -> list[tuple[int, float]]:
    history = mlflow.MlflowClient().get_metric_history(run_id, metric)
    return [(point.step, point.value) for point in history]


def test_settings_epochs_of_all_fits_the_cell_and_the_end_are_in_one_run() -> None:
    run = Told(rate=0.5)
    made = log(run, "digits")
    run.told(epoch_end(0, loss=3.0), epoch_end(1, loss=2.0))
    run.told(epoch_end(0, loss=1.0, fit=1))
    run.end()
    logged = mlflow.get_run(made.run_id)
    assert made.problem == ""
    assert (logged.info.run_name, logged.info.status) == ("run 1", "FINISHED")
    assert mlflow.get_experiment(logged.info.experiment_id).name == "digits"
    assert logged.data.params == {"rate": "0.5"}
    assert steps(made.run_id, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert "seconds" in logged.data.metrics
    assert mlflow.artifacts.load_text(f"{logged.info.artifact_uri}/cell.py") == "model.fit(x)"


@pytest.mark.parametrize(("status", "expected"), [("stopped", "KILLED"), ("error", "FAILED")])
def test_how_it_ended_is_told(status: str, expected: str) -> None:
    run = Told()
    made = log(run)
    run.end(status)
    assert mlflow.get_run(made.run_id).info.status == expected


def test_the_notebooks_own_run_takes_several_and_stays_open() -> None:
    with mlflow.start_run() as active:
        for number in (1, 2):
            run = Told(rate=number)
            run.name = f"run {number}"
            assert log(run).run_id == active.info.run_id
            run.told(epoch_end(0, loss=number))
            run.end()
        now = mlflow.get_run(active.info.run_id)
        assert now.info.status == "RUNNING"
        assert now.data.params == {"rate": "1", "run 2/rate": "2"}
        assert (now.data.metrics["loss"], now.data.metrics["run 2/loss"]) == (1.0, 2.0)
        assert mlflow.active_run().info.run_id == active.info.run_id


def test_models_that_came_back_are_artifacts() -> None:
    import keras

    run, model = Told(), keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made = log(run)
    run.end(model=model, history=[1, 2])
    files = mlflow.MlflowClient().list_artifacts(made.run_id, "models")
    assert [file.path for file in files] == ["models/model.keras"]


def test_a_server_that_is_not_there_is_a_notice_and_no_more() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        mlflow.set_tracking_uri(f"http://127.0.0.1:{free.getsockname()[1]}")
        run = Told()
        made = log(run)
        until = time.monotonic() + 30
        while not made.problem and time.monotonic() < until:
            time.sleep(0.05)
        run.told(epoch_end(0))
        run.told(epoch_end(1))
        run.end()
    assert [text for text in run.state.notices if "Not logged in MLflow (http://127.0.0.1" in text] == run.state.notices
    assert len(run.state.notices) == 1
    assert "refused" in run.state.notices[0]


def test_without_mlflow_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_log.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install mlflow-skinny, or tfos_magic's extra mlflow"):
        log(Told())
    monkeypatch.delitem(sys.modules, "mlflow")
    assert mlflow_log.active_run() is None


@pytest.mark.soak
@pytest.mark.parametrize(("call", "logged"), [("log_text", True), ("log_batch", False)])
def test_a_call_that_fails_leaves_no_run_of_mlflow_going_on(
    call: str, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no credentials for the store")

    monkeypatch.setattr(mlflow.MlflowClient, call, fail)
    run = Told(rate=0.5)
    made = log(run, "digits")
    run.told(epoch_end(0, loss=3.0))
    run.end()
    assert "no credentials" in made.problem
    assert mlflow.get_run(made.run_id).info.status == "FINISHED"
    assert bool(steps(made.run_id, "loss")) == logged


def test_no_password_of_the_address_is_shown_and_a_server_that_asks_for_one_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        mlflow.set_tracking_uri(f"http://alice:secret@127.0.0.1:{port}")
        heard: list[bytes] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        mlflow_log._refuse_deaf(mlflow.get_tracking_uri())
        thread.join(10)
        assert b"GET /health" in heard[0]
        assert b"Authorization: Basic" in heard[0]
    run = Told()
    log(run)
    deadline = time.monotonic() + 30
    while not run.state.notices and time.monotonic() < deadline:
        run.told(epoch_end(0))
        time.sleep(0.05)
    (notice,) = run.state.notices
    assert "http://alice:…@127.0.0.1" in notice
    assert "secret" not in notice
    run.end()


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    def fail() -> None:
        raise ValueError("  ")

    run = Told()
    logged = log(run)
    run.end()
    assert logged._fails(fail)
    assert logged.problem == "ValueError: "
