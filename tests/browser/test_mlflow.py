"""A run in MLflow: logged by a kernel to a real server, and seen on its pages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.kernel.conftest import new_kernel as new_kernel
from tests.kernel.kernel_driver import SESSION, Kernel, train_cell

START_SECONDS = 90.0


@pytest.fixture
def server(project: Path, tmp_path: Path) -> Iterator[str]:
    """A server of MLflow from an environment of its own, which ``make soak`` makes; its address."""
    program = project / ".venv-mlflow" / "bin" / "mlflow"
    assert program.exists(), "make soak installs MLflow's server: run this by it once"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    store = f"sqlite:///{tmp_path}/mlflow.db"
    options = ["--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    command = [str(program), "server", "--host", "127.0.0.1", "--port", url.rpartition(":")[2], *options]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            _await(f"{url}/health")
            yield url
        finally:
            running.terminate()
            running.wait(20)


def _await(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline, f"no answer at {url}"
            time.sleep(0.5)


def ask(url: str, **body: Any) -> dict[str, Any]:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        known: dict[str, Any] = json.load(answer)
        return known


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_run_is_one_of_mlflows_with_its_curves_and_its_model(
    server: str, new_kernel: Callable[..., Kernel], context: BrowserContext, artefacts: Path
) -> None:
    kernel = new_kernel(MLFLOW_TRACKING_URI=server)
    assert not kernel.run("%load_ext tfos_magic").error
    assert not kernel.run(SESSION).error
    result = kernel.run(train_cell("-n 2 --label y --seed 3 --mlflow digits -o model", epochs=5), timeout=240)
    assert not result.error, result.traceback
    stopped = kernel.run("import mlflow\nmlflow.set_experiment('own')\nactive = mlflow.start_run()", timeout=120)
    assert not stopped.error, stopped.traceback
    assert not kernel.run(train_cell("--label y", epochs=2), timeout=240).error
    assert not kernel.run("mlflow.end_run()").error

    api = f"{server}/api/2.0/mlflow"
    experiment = ask(f"{api}/experiments/get-by-name?experiment_name=digits")["experiment"]["experiment_id"]
    runs = ask(f"{api}/runs/search", experiment_ids=[experiment])["runs"]
    assert [run["info"]["status"] for run in runs] == ["FINISHED"]
    data, run_id = runs[0]["data"], runs[0]["info"]["run_id"]
    assert {"key": "seed", "value": "3"} in data["params"]
    assert len(ask(f"{api}/metrics/get-history?run_id={run_id}&metric_key=loss")["metrics"]) == 5
    files = ask(f"{api}/artifacts/list?run_id={run_id}&path=models")["files"]
    assert [file["path"] for file in files] == ["models/model.keras"]
    own = ask(f"{api}/experiments/get-by-name?experiment_name=own")["experiment"]["experiment_id"]
    active = ask(f"{api}/runs/search", experiment_ids=[own])["runs"]
    assert [len([m for m in run["data"]["metrics"] if m["key"] == "loss"]) for run in active] == [1]

    page = context.new_page()
    page.goto(f"{server}/#/experiments/{experiment}/runs/{run_id}/model-metrics")
    expect(page.get_by_text("loss").first).to_be_visible(timeout=60_000)
    page.wait_for_timeout(3_000)  # its charts are drawn later
    page.screenshot(path=artefacts / "mlflow.png")
    page.close()
    assert os.environ.get("MLFLOW_TRACKING_URI") is None
