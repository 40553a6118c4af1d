"""What an image replayed by ``image_replay`` is asked to show: it is lean, its server starts and ends, it trains."""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from image_replay import Image, run
from kubernetes_stand_in import DRIVER, Cluster, serving
from steps import StepFailed

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 120.0
END_SECONDS = 20.0
LEFT_BEHIND = ("var/lib/apt/lists/*", "var/cache/apt/archives/*.deb", "root/.cache/*", "src", ".lent")
IMPORTED = """
import os; os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras, pyarrow, pyspark, tensorflow, tfos_magic, tfos_magic.widgets
print("tfos_magic", tfos_magic.__version__, "from", tfos_magic.__file__)
print("Keras", keras.__version__, "TensorFlow", tensorflow.__version__, "Spark", pyspark.__version__)
print("user", os.getuid(), "group", os.getgid(), "may write here:", os.access(".", os.W_OK))
"""
# In the container: JupyterLab to whoever has the token, and nothing to others.
ASKED = """
import sys, urllib.error, urllib.request
def ask(path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:8888{path}", headers=headers)
    return urllib.request.urlopen(request, timeout=20).read().decode()
assert "jupyter-config-data" in ask("/lab", Authorization=f"token {sys.argv[1]}")
try:
    ask("/api/contents")
except urllib.error.HTTPError as error:
    print("JupyterLab answers who has the token; without it", error.code)
else:
    sys.exit("/api/contents is open to whoever asks")
"""
# After the session of the page below, to which only the address of the stand-in, and what it asks for, is added.
PAGE = ROOT / "docs" / "how-to" / "kubernetes-images.md"
MASTER = "https://kubernetes.default.svc:443"
ADDED = """.config("spark.kubernetes.executor.enableApiWatcher", "false")
    .config("spark.executor.extraJavaOptions", "-Dtfos.replayed='as one option'")
    .getOrCreate()"""
PROGRAM = """
from tfos_magic import TFCluster

def seen(_):
    import psutil
    (java,) = (process for process in psutil.Process().parents() if process.name() == "java")
    return psutil.Process(1).name(), java.username(), java.cmdline()

first, user, line = spark.sparkContext.range(1).map(seen).first()
assert "-Dtfos.replayed=as one option" in line, line
print("an executor:", first, "as the first process, Java as", user, "with", *line[line.index("-cp") + 2 :])
train = spark.range(2000).selectExpr("array(rand(1), rand(2)) AS point").selectExpr("point", "point[0] AS label")
CELL = '''
import keras
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(train, epochs=3, verbose=0).history
'''
with TFCluster(spark, workers=2) as cluster:
    results = cluster.run(CELL, frames={"train": train}, label="label", batch_size=50, outputs=["model", "history"])
    print("trained by", len(cluster.status().workers), "workers")
print("loss of each epoch:", *(f"{loss:.4f}" for loss in results["history"]["loss"]))
print("what came back:", results["model"].count_params(), "weights")
spark.stop()
"""


def look_into(image: Image) -> str:
    """No caches, lists or sources are left; size on disk, what is imported, and Java."""
    if left := [str(path) for pattern in LEFT_BEHIND for path in image.root.glob(pattern)]:
        raise StepFailed(f"left behind in the image: {', '.join(left)}")
    if image.user == "0":
        raise StepFailed("the image's processes run as root")
    size = subprocess.run(["du", "-sxm", image.root], check=True, capture_output=True, text=True).stdout.split()[0]
    imported = inside(image, "python", "-P", "-c", IMPORTED)
    return f"{int(size) / 1000:.2f} GB on disk\n{imported}{inside(image, 'java', '--version').splitlines()[0]}\n"


def start_lab(image: Image) -> str:
    """JupyterLab as the image starts it, with a network of its own; the image's own check of its health is asked."""
    token = secrets.token_hex(16)
    began = time.monotonic()
    with running(image, {"JUPYTER_TOKEN": token}) as container:
        while exec_in(image, container, *image.health).returncode:
            if container.poll() is not None or time.monotonic() - began > START_SECONDS:
                raise StepFailed(f"JupyterLab ended, or was not healthy within {START_SECONDS:.0f} s")
            time.sleep(0.5)
        healthy = time.monotonic() - began
        answer = exec_in(image, container, "python", "-c", ASKED, token)
        if answer.returncode:
            raise StepFailed(answer.stdout)
        began = time.monotonic()
        first = first_process(container)
        name = first.name()
        first.terminate()
        status = container.wait(END_SECONDS)
    ended = f"{name}, the first process, ended with {status} {time.monotonic() - began:.1f} s after SIGTERM"
    return f"healthy after {healthy:.1f} s\n{answer.stdout}{ended}\n"


def run_quickstart(image: Image) -> str:
    """The first tutorial, from top to bottom, on ``local[3]``."""
    (image.root / "tmp" / "demo.py").write_bytes((ROOT / "tools" / "demo.py").read_bytes())
    return inside(image, "python", "/tmp/demo.py", "notebooks/00_quickstart.ipynb")


def train_on_executors(notebook: Image, executor: Image) -> str:
    """The page's session in one image, with executors that a stand-in for Kubernetes starts from the other."""
    with tempfile.TemporaryDirectory(prefix="tfos-pods-") as folder:
        cluster = Cluster(executor, Path(folder))
        try:
            with serving(cluster) as address:
                trained = inside(notebook, "python", "-c", session(address) + PROGRAM, HOSTNAME=DRIVER)
        except StepFailed as error:
            logs = "\n".join(log.read_text(errors="replace")[-3000:] for log in sorted(Path(folder).glob("*.log")))
            raise StepFailed(f"{error}\n{logs}") from error
    return f"{len(cluster.pods)} pods asked for and started\n{trained}"


def session(address: str) -> str:
    """The lines that start a session on the page about these images, for the stand-in at ``address``."""
    (block,) = re.findall(r"```python\n(.*?k8s://.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(block).replace(MASTER, address).replace(".getOrCreate()", ADDED)


def inside(image: Image, *command: str, **variables: str) -> str:
    """What a command of the image prints."""
    return run(image.enter(*command), {**image.variables, **variables}, " ".join(command[:2]))


@contextmanager
def running(image: Image, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The image's own command, alone in its network; what it printed is told when something goes wrong."""
    with tempfile.TemporaryFile("w+") as log:
        command = image.enter(*image.entrypoint, *image.command, alone=True)
        container = subprocess.Popen(command, env={**image.variables, **variables}, stdout=log, stderr=log, text=True)
        try:
            yield container
        except (StepFailed, subprocess.TimeoutExpired) as error:
            log.seek(0)
            raise StepFailed(f"{error}\n{log.read()}") from error
        finally:
            container.kill()  # and with it the first process of its namespace, and all others there
            container.wait(END_SECONDS)


def exec_in(image: Image, container: subprocess.Popen[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command beside those of a container."""
    first = first_process(container).pid
    entered = ["nsenter", f"--target={first}", "--mount", "--pid", "--net", "chroot", f"--userspec={image.owner}"]
    return subprocess.run(
        [*entered, str(image.root), *command],
        env=dict(image.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


def first_process(container: subprocess.Popen[str]) -> psutil.Process:
    """The process that is the first one inside."""
    deadline = time.monotonic() + START_SECONDS
    while not (children := psutil.Process(container.pid).children()):
        if container.poll() is not None or time.monotonic() > deadline:
            raise StepFailed(f"No process was started within {START_SECONDS:.0f} s")
        time.sleep(0.1)
    return children[0]
