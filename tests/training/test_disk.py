"""Two trainers in one directory see each what one process would see there."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What each rank found goes to rank 0 as numbers, for rank 0's values alone come back.
SAME = """
import hashlib
import numpy as np
digest = int(hashlib.sha256(repr(seen).encode()).hexdigest()[:12], 16)
same = len(set(tfos.allgather(np.array([digest], "int64")).numpy().tolist())) == 1
"""

# What collides when two processes do it in one directory.
PROGRAM = (
    """
import csv, os, shutil, tempfile, zipfile
import keras
import numpy as np
import mylib
from helpers.maths import doubled

os.makedirs("out")
os.makedirs(absolute)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
best, log = keras.callbacks.ModelCheckpoint(absolute + "/best.weights.h5", save_best_only=True,
                                            save_weights_only=True), keras.callbacks.CSVLogger("out/log.csv")
board = keras.callbacks.TensorBoard("out/events")
model.fit(x, x.sum(1), epochs=3, validation_split=0.25, callbacks=[best, log, board])
with open("out/events/note.txt", "w") as file:
    file.write(str(sorted(os.listdir("out/events"))))
model.load_weights(absolute + "/best.weights.h5")
with open("out/log.csv") as file:
    rows = list(csv.DictReader(file))
model.save("model.keras")
again = keras.models.load_model("model.keras")
with zipfile.ZipFile("model.zip", "w") as archive:
    archive.write("model.keras")
zipfile.ZipFile("model.zip").extractall("unzipped")
for name in ("data.csv", "large.csv"):
    with open(name, "a") as file:
        file.write("3,4\\n")
large = os.path.getsize("large.csv")
pack = keras.utils.get_file("pack.zip", url, extract=True)
inside = sorted(os.listdir(pack + "/pack"))
shutil.rmtree(pack)
path = os.path.join(tempfile.mkdtemp(), "note")
with open(path, "w") as file:
    file.write("hello")
files, data, rate, two = sorted(os.listdir(".")), open("data.csv").read(), mylib.RATE, doubled(1)
order = list({"cat", "dog", "bird", "fish"})
folders = open("out/events/note.txt").read()
seen = [folders, rows, files, data, large, inside, order, rate, two, model.get_weights(), again.get_weights()]
"""
    + SAME
)

FILES = ["data.csv", "helpers", "large.csv", "model.keras", "model.zip", "mylib.py", "out", "unzipped"]


class Server(http.server.ThreadingHTTPServer):
    """Serves an archive and counts how often it was asked for."""

    def __init__(self, archive: bytes) -> None:
        self.requests: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(archive)))
                self.end_headers()
                self.wfile.write(archive)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    archive = tmp_path / "pack.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for number in range(50):
            made.writestr(f"pack/{number}.txt", str(number))
    served = Server(archive.read_bytes())
    archive.unlink()
    thread = threading.Thread(target=served.serve_forever, name="test-server")
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A notebook's directory, with modules and data beside it."""
    work = tmp_path / "work"
    (work / "helpers").mkdir(parents=True)
    (work / "helpers" / "maths.py").write_text("def doubled(x):\n    return 2 * x\n")
    (work / "mylib.py").write_text("from helpers.maths import doubled\n\nRATE = 1\n")
    (work / "data.csv").write_text("1,2\n")
    (work / "large.csv").write_text("1,2\n" * 100_000)
    return work


def run(folder: Path, *cells: dict[str, Any], may_mount: bool = True, **names: Any) -> list[dict[str, Any]]:
    """Run cells on two trainers of which ``folder`` is the working directory."""
    job = {"cells": cells, "names": names, "may_mount": may_mount}
    environment = {**os.environ, "HOME": str(folder.parent), "KERAS_HOME": str(folder.parent / "keras")}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.disk_program"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def message_of(outcome: dict[str, Any], rank: int = 0) -> str:
    return str((outcome["errors"][rank] or {}).get("message", ""))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_program_finds_its_own_files_on_every_rank_and_leaves_rank_0s(folder: Path, server: Server) -> None:
    absolute = folder.parent / "absolute"
    names = {"url": f"http://127.0.0.1:{server.server_port}/pack.zip", "absolute": str(absolute)}
    wanted = ["same", "files", "data", "rate", "two", "path", "rows", "inside"]
    clean = "import shutil\nfor folder in ('out', 'unzipped', absolute):\n    shutil.rmtree(folder)\n"
    clean += "import os\nfor name in ('model.keras', 'model.zip'):\n    os.remove(name)\n"
    first, second = run(
        folder,
        {"source": PROGRAM, "outputs": wanted},
        {
            "source": clean + PROGRAM,
            "outputs": wanted,
            "write": {"mylib.py": "from helpers.maths import doubled\nRATE = 25"},
        },
        **names,
    )
    assert not message_of(first)
    assert not message_of(second)
    for outcome, rate, data in ((first, 1, "1,2\n3,4\n"), (second, 25, "1,2\n3,4\n3,4\n")):
        values = outcome["values"]
        assert values["same"]
        assert values["files"] == FILES
        assert (values["data"], values["rate"], values["two"]) == (data, rate, 2)
        assert len(values["rows"]) == 3
        assert len(values["inside"]) == 50
        assert Path(values["path"]).read_text() == "hello"
        assert not outcome["notices"]
    assert server.requests == ["/pack.zip"]
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "data.csv").read_text() == "1,2\n3,4\n3,4\n"
    assert (absolute / "best.weights.h5").exists()


RENAMES = (
    """
import glob, os, pathlib, shutil, tempfile
order = os.listdir("some")
orders = [order, [path[5:] for path in glob.glob("some/*")], [path.name for path in pathlib.Path("some").iterdir()]]
orders.append([entry.name for entry in os.scandir("some")])
shutil.rmtree("some")
given, path = tempfile.mkstemp()
os.write(given, b"data")
os.close(given)
os.replace(path, "final.bin")
os.rename(above + "/other", "mine")
os.rename("many", "moved")
refused = []
for source, target in (("helpers", "mine"), ("final.bin", "helpers"), ("nowhere", "x")):
    try:
        os.rename(source, target)
    except OSError as error:
        refused.append(type(error).__name__)
seen = [os.path.exists(path), sorted(os.listdir(".")), os.listdir("mine"), len(os.listdir("moved")), refused, orders]
"""
    + SAME
)
SOCKETS = """
import os, socket
if tfos.rank() == 0:
    os.mkdir("made")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("made/socket")
    open("made/file", "w").close()
tfos.barrier()
seen = sorted(os.listdir("made"))
open(shared, "a").close()
"""


@pytest.mark.soak
def test_folders_of_one_disk_are_listed_as_there_and_take_each_others_files_by_a_new_name(folder: Path) -> None:
    above = folder.parent
    for place, count in ((above / "other", 2), (folder / "many", 3000), (folder / "some", 60)):
        place.mkdir()
        for number in range(count):
            (place / str(number)).write_text("x" * (1 if number % 2 else 100_000))
    order = os.listdir(folder / "some")
    (outcome,) = run(folder, {"source": RENAMES, "outputs": ["same", "seen"]}, above=str(above))
    assert not message_of(outcome)
    assert not message_of(outcome, 1)
    there = ["data.csv", "final.bin", "helpers", "large.csv", "mine", "moved", "mylib.py"]
    errors = ["OSError", "IsADirectoryError", "FileNotFoundError"]
    assert outcome["values"] == {"same": True, "seen": [False, there, ["0", "1"], 3000, errors, [order] * 4]}
    assert sorted(path.name for path in folder.iterdir()) == there


@pytest.mark.soak
def test_sockets_stay_with_who_made_them_and_files_that_all_write_are_told_of(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tfos-test-", dir=Path.home()) as home:  # not of those that are covered
        (outcome,) = run(folder, {"source": SOCKETS, "outputs": ["seen"]}, shared=f"{home}/line.txt")
    assert not message_of(outcome)
    assert not message_of(outcome, 1)
    assert outcome["values"]["seen"] == ["file", "socket"]
    (notice,) = outcome["notices"]
    assert "Worker 1 writes" in notice
    assert "line.txt, and so do others of its host at the same time: only files below" in notice


LEGACY = (
    """
import os
import numpy as np
import tf_keras

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
given = [tf_keras.callbacks.CSVLogger("log.csv"), tf_keras.callbacks.TensorBoard("events")]
model.fit(x, x.sum(1), epochs=2, verbose=0, validation_split=0.25, callbacks=given)
with open("events/note.txt", "w") as file:
    file.write(str(sorted(os.listdir("events"))))
seen = [open("events/note.txt").read(), open("log.csv").read()]
"""
    + SAME
)


@pytest.mark.soak
def test_a_program_of_tf_keras_finds_the_files_of_its_callbacks_on_every_rank(folder: Path) -> None:
    (outcome,) = run(folder, {"source": LEGACY, "outputs": ["same"]})
    assert not message_of(outcome)
    assert not message_of(outcome, 1)
    assert outcome["values"] == {"same": True}
    assert (folder / "events" / "note.txt").read_text() == "['note.txt', 'train', 'validation']"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_without_the_right_to_mount_relative_files_are_apart_and_others_are_told_of(
    folder: Path, server: Server
) -> None:
    """The right is taken from the trainers, root or not."""
    (folder / "old.bin").write_bytes(b"old" * 100_000)
    cell = PROGRAM.replace("os.makedirs(absolute)", "os.makedirs(absolute, exist_ok=True)")
    cell = cell.replace("seen =", "open('old.bin', 'r+b').write(b'new')\nopen(absolute + '/own', 'w').close()\nseen =")
    names = {"url": f"http://127.0.0.1:{server.server_port}/pack.zip", "absolute": str(folder.parent / "absolute")}
    cell = cell.replace("shutil.rmtree(pack)", "")  # which both ranks have in common here
    wanted = {"source": cell, "outputs": ["same", "files", "data", "path"]}
    quiet = {"source": "open('relative', 'w').close()\nimport os\nos.remove('relative')", "outputs": []}
    (outcome, other) = run(folder, wanted, quiet, may_mount=False, **names)
    assert not message_of(outcome)
    assert not message_of(outcome, 1)
    assert outcome["values"]["same"]
    assert outcome["values"]["files"] == sorted([*FILES, "old.bin"])
    assert outcome["values"]["data"] == "1,2\n3,4\n"
    assert Path(outcome["values"]["path"]).read_text() == "hello"
    assert server.requests == ["/pack.zip"]
    assert (folder / "data.csv").read_text() == "1,2\n3,4\n"
    assert (folder / "old.bin").read_bytes()[:6] == b"newold"
    assert len(outcome["notices"]) == 1
    assert "Worker 1 writes" in outcome["notices"][0]
    assert "absolute" in outcome["notices"][0]
    assert not message_of(other)
    assert not message_of(other, 1)
    assert not other["notices"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_programs_that_know_of_ranks_and_workers_that_are_elsewhere(folder: Path) -> None:
    """A barrier shows rank 0's files; by themselves workers have no copies; elsewhere modules come along."""
    (folder / "best.txt").write_text("of an earlier run")
    for_all = """
if tfos.rank() == 0:
    for name in ("best.txt", "chief.txt"):
        with open(name, "w") as file:
            file.write("of rank 0")
with open("own.txt", "w") as file:
    file.write(f"of rank {tfos.rank()}")
tfos.barrier()
seen = [open(name).read() for name in ("best.txt", "chief.txt")]
own = open("own.txt").read() == f"of rank {tfos.rank()}"
seen += [own]
"""
    alone = "with open(f'{tfos.rank()}.txt', 'w') as file:\n    file.write('alone')"
    elsewhere = "import mylib\nimport helpers.maths\nrate = mylib.RATE\nopen('data.csv')"
    barrier, by_itself, missing = run(
        folder,
        {"source": for_all + SAME, "outputs": ["same", "seen"]},
        {"source": alone, "outputs": [], "strategy": "none"},
        {"source": "import os\nos.chdir('/')\n" + elsewhere, "outputs": ["rate"], "elsewhere": True},
    )
    assert not message_of(barrier)
    assert barrier["values"] == {"same": True, "seen": ["of rank 0", "of rank 0", True]}
    assert [(folder / f"{rank}.txt").read_text() for rank in (0, 1)] == ["alone", "alone"]
    assert not message_of(by_itself)
    for rank in (0, 1):
        assert f"worker {rank} is not on the notebook's host" in message_of(missing, rank)
        assert missing["errors"][rank]["line"] == 6


OWN_FOLDERS = """
for name in ("results", "spark-results", "tfos-results"):
    with open(name + "/log.txt", "a") as file:
        file.write("trained\\n")
tfos.barrier()
lines = [open(name + "/log.txt").read() for name in ("results", "spark-results", "tfos-results")]
"""


@pytest.mark.timeout(300)
def test_a_folder_of_the_notebooks_own_is_no_engines_whatever_it_is_called(folder: Path) -> None:
    for name in ("results", "spark-results", "tfos-results"):
        (folder / name).mkdir()
    (outcome,) = run(folder, {"source": OWN_FOLDERS, "outputs": ["lines"]})
    assert outcome["errors"] == [{}, {}], message_of(outcome)
    assert outcome["values"]["lines"] == ["trained\n"] * 3
    assert [(folder / name / "log.txt").read_text() for name in ("results", "spark-results")] == ["trained\n"] * 2
