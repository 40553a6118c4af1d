"""No key lies in what a notebook with a cluster writes: files of all kinds, Spark's event log, the saved notebook."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

SESSION = """
%load_ext tfos_magic
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
         .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file:{events}").getOrCreate())
train = spark.range(0, 200, 1, 2).selectExpr("array(rand(1), rand(2)) as x", "cast(id % 2 as double) as y")
"""
TRAIN = """%%tfos_train -n 2 --label y --view widget --tensorboard --log-dir logs --checkpoint-dir kept -o model
import keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(train, epochs=2, verbose=0)
print("trained")
"""
SHOW = """
runtime = get_ipython().magics_manager.registry["TFOSMagics"].runtime
%tfos status
from tfos_magic.widgets import Dashboard
display(Dashboard(runtime.known))
%tfos runs
%tfos doctor
%tfos logs
display(runtime, runtime.cluster, runtime.cluster.workers, vars(runtime.cluster), vars(runtime.cluster._control))
"""
FAIL = """%xmode Verbose
cluster = runtime.cluster
cluster.run("1 / 0")
"""
TELL = """
import json, os
agents, control = cluster._agents, cluster._control
configs = [job._task._config for job in agents._jobs.values()]
keys = {{"token": cluster._token, "control socket": control._secret.decode()}}
for number, config in enumerate(configs):
    keys[f"agent {{number}}"], keys[f"certificate {{number}}"] = config.secret.decode(), config.identity.key
descriptor = os.open({file!r}, os.O_WRONLY | os.O_CREAT, 0o600)
os.write(descriptor, json.dumps(keys).encode())
"""


def _forms(key: str) -> list[bytes]:
    """A key as it may be written: a PEM by one of its lines, anything in base64 and by quotes of JSON as well."""
    body = [line for line in key.splitlines() if not line.startswith("-----")]
    longest = max(body, key=len)
    return [longest.encode(), base64.b64encode(longest.encode())[4:-8], json.dumps(longest)[1:-1].encode()]


def _written(*folders: Path) -> Iterator[tuple[str, bytes]]:
    for top in folders:
        for folder, _, names in os.walk(top):  # in which things come and go
            for path in (Path(folder) / name for name in names):
                with contextlib.suppress(OSError):
                    if path.is_file() and not path.is_symlink():
                        yield str(path), path.read_bytes()


@pytest.mark.soak
def test_no_key_is_in_files_event_logs_notebooks_commands_or_environments(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("home", "temporary", "events", "work")}
    for folder in folders.values():
        folder.mkdir()
    told = tmp_path / "keys"
    cells = [SESSION.format(events=folders["events"]), TRAIN, SHOW, FAIL, TELL.format(file=str(told))]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.cells[3].metadata.tags = ["raises-exception"]
    resources = {"metadata": {"path": str(folders["work"])}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources)
    places = {"HOME": str(folders["home"]), "TMPDIR": str(folders["temporary"]), "IPYTHONDIR": str(folders["home"])}
    with client.setup_kernel(env={**os.environ, **places}):
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        client.set_widgets_metadata()
        nbformat.write(notebook, folders["work"] / "saved.ipynb")
        written = dict(_written(*folders.values()))
        for process in [*psutil.Process(client.km.provisioner.pid).children(recursive=True), psutil.Process()]:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it has ended
                    written[f"{name} of {process.name()} {process.pid}"] = Path(
                        f"/proc/{process.pid}/{name}"
                    ).read_bytes()
    keys = json.loads(told.read_text())
    assert len(keys) == 6
    found = [
        (name, path)
        for name, key in keys.items()
        for path, text in written.items()
        for form in _forms(key)
        if form in text
    ]
    assert not found
    saved = (folders["work"] / "saved.ipynb").read_text()
    assert "ZeroDivisionError" in saved
    assert "application/vnd.jupyter.widget-state+json" in saved
    assert any("events" in path and text for path, text in written.items())
    assert any(path.endswith(".npz") for path in written)
    assert any(path.startswith("environ of tfos-trainer") for path in written)
