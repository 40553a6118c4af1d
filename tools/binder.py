"""Replay Binder's build and start, as far as that goes without Docker and without conda's packages.

Usage: ``python tools/binder.py [--keep FOLDER]``, or ``make binder``. Takes the commit that is checked out, not changes
since. Downloads about 1 GB, unless pip has it in its cache. Exits with 1 at the first step that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import binder_image
import steps
import yaml
from servers import address, ask, status
from steps import StepFailed

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "/user/replay/"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches package indexes, and what it has already fetched from them.
PASSED_ON = ("PIP_", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT")
STEP_SECONDS = 1800.0
END_SECONDS = 15.0
REFUSALS = (302, 403)  # to the page that asks for a token, and forbidden
INSTALL = """
. tools/apt.sh
for package in "$@"; do
    if dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'install ok installed'; then
        echo "$package is here"
    else
        apt_install "$package (of binder/apt.txt)" "$package"
    fi
done
"""
IMPORTED = """
import os; os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tfos_magic, tfos_magic.widgets, keras, tensorflow, pyspark
print("tfos_magic", tfos_magic.__version__, "from", tfos_magic.__file__)
print("Keras", keras.__version__, "TensorFlow", tensorflow.__version__, "Spark", pyspark.__version__)
"""


@dataclass(frozen=True)
class Replay:
    """The places of one replay, all of them in ``folder``: the tree, the environment, and the home of its user."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def log(self) -> Path:
        """What servers of the session print."""
        return self.folder / "session.log"

    @property
    def environment(self) -> dict[str, str]:
        """What a session's processes see: nothing of whoever runs this."""
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        cache = os.environ.get("PIP_CACHE_DIR", os.path.expanduser("~/.cache/pip"))
        own = {
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{self.python.parent}:{SYSTEM_PATH}",
            "PIP_CACHE_DIR": cache,
            "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        }
        return passed | own

    def run(self, *command: str) -> str:
        """Run a command in the tree, and give what it printed."""
        try:
            done = subprocess.run(
                command,
                cwd=self.tree,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=STEP_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{command[0]} did not end within {STEP_SECONDS:.0f} s\n{error.output or ''}") from error
        if done.returncode:
            raise StepFailed(f"{command[0]} ended with exit status {done.returncode}\n{done.stdout}")
        return done.stdout

    @contextmanager
    def serving(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """A process of a session, started as Binder starts it, with pipes for its input and output."""
        with self.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                ["binder/start", *command],
                cwd=self.tree,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield process
        except (StepFailed, OSError) as error:
            raise StepFailed(f"{error}\n{self.log.read_text(encoding='utf-8')}") from error
        finally:
            process.terminate()
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=END_SECONDS)


def check_out(replay: Replay) -> str:
    """The tree of the commit that is checked out, which is what Binder clones."""
    replay.tree.mkdir(parents=True)
    (replay.folder / "home").mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", str(replay.tree)], input=archive, check=True)
    said = subprocess.run(["git", "log", "-1", "--format=%h %s"], cwd=ROOT, check=True, capture_output=True, text=True)
    return said.stdout


def ask_repo2docker(replay: Replay) -> str:
    """The steps of the Dockerfile that repo2docker, as it is today, makes of the tree."""
    repo2docker = binder_image.install(replay.folder / "repo2docker", Path(sys.executable), replay.run)
    return binder_image.describe(repo2docker, replay.tree, replay.run)


def install_packages(replay: Replay) -> str:
    """The packages of apt.txt."""
    lines = (replay.tree / "binder" / "apt.txt").read_text(encoding="utf-8").splitlines()
    packages = [line.partition("#")[0].strip() for line in lines]
    return replay.run("sh", "-euc", INSTALL, "apt", *filter(None, packages))


def make_environment(replay: Replay) -> str:
    """An empty environment with the Python that environment.yml names."""
    version = python_version(replay)
    python = sys.executable if platform.python_version().startswith(f"{version}.") else shutil.which(f"python{version}")
    if python is None:
        raise StepFailed(f"environment.yml wants Python {version}, and there is no python{version} on the PATH")
    subprocess.run([python, "-m", "venv", str(replay.python.parent.parent)], check=True)
    return replay.run(str(replay.python), "--version")


def install_base(replay: Replay) -> str:
    """What repo2docker's environment has before ours is put over it: conda-forge's packages, here from PyPI."""
    repo2docker = replay.folder / "repo2docker" / "bin" / "python"
    base = binder_image.base_of(repo2docker, python_version(replay), replay.run)
    constraints = replay.folder / "base.txt"
    constraints.write_text(base.constraints, encoding="utf-8")
    replay.run("pip", "install", "--upgrade", "--constraint", str(constraints), *base.asked)
    versions = "\n".join(f"{name} {base.locked[name]}" for name in ("python", *base.asked))
    return f"{versions}\n(python here: {platform.python_version()})\n{replay.run('pip', 'check')}"


def install_pins(replay: Replay) -> str:
    """The pip section, in the way of conda: from a file beside environment.yml, over what is there."""
    (section,) = (line["pip"] for line in dependencies(replay) if isinstance(line, dict))
    requirements = replay.tree / "binder" / "condaenv.requirements.txt"
    requirements.write_text("\n".join(section) + "\n", encoding="utf-8")
    try:
        replay.run("pip", "install", "--upgrade", "--requirement", str(requirements))
    finally:
        requirements.unlink()
    size = sum(path.stat().st_size for path in replay.python.parent.parent.rglob("*") if path.is_file())
    return f"{len(section)} packages, {size / 1e9:.1f} GB\n"


def post_build(replay: Replay) -> str:
    """What comes last in the image; pip then finds nothing missing and no versions that quarrel."""
    return replay.run("binder/postBuild") + replay.run("pip", "check")


def import_all(replay: Replay) -> str:
    """The package, its widgets and what it stands on, from where they are installed and not from the tree; and the
    server that Binder starts."""
    imported = replay.run("binder/start", "python", "-P", "-c", IMPORTED)
    return f"{imported}JupyterHub's server {replay.run('binder/start', 'jupyterhub-singleuser', '--version')}"


def open_lab(replay: Replay) -> str:
    """JupyterLab under a base URL, behind a token, and TensorBoard through its proxy."""
    token = secrets.token_hex(16)
    allow = ["--allow-root"] if os.geteuid() == 0 else []
    options = [f"--ServerApp.base_url={PREFIX}", f"--IdentityProvider.token={token}", "--ServerApp.ip=127.0.0.1"]
    board = ["python", "-m", "tfos_magic.tensorboard.main", str(replay.folder / "runs")]
    lab = replay.serving("jupyter", "lab", "--no-browser", "--ServerApp.port=0", *options, *allow)
    with lab as server, replay.serving(*board) as tensorboard:
        url = address(replay.folder / "home", server)
        port = hand_over(tensorboard, token)
        version = json.loads(ask(f"{url}api", token))["version"]
        if "jupyter-config-data" not in ask(f"{url}lab", token):
            raise StepFailed(f"{url}lab is not JupyterLab")
        environment = f"{url}proxy/{port}/{token}/data/environment"
        logs = json.loads(ask(environment, token))["data_location"]
        refused = status(environment)
        if refused not in REFUSALS:
            raise StepFailed(f"without the token, {environment} answers {refused}, and not with one of {REFUSALS}")
    return (
        f"Jupyter server {version} at {PREFIX}\nTensorBoard of {logs} through {PREFIX}proxy/{port}/, with the token\n"
    )


def hand_over(tensorboard: subprocess.Popen[str], secret: str) -> str:
    """Tell TensorBoard the secret that its paths begin with; gives its port."""
    assert tensorboard.stdin is not None
    assert tensorboard.stdout is not None
    tensorboard.stdin.write(f"{secret}\n")
    tensorboard.stdin.flush()
    return tensorboard.stdout.readline().strip()


def run_quickstart(replay: Replay) -> str:
    """The first tutorial, from top to bottom."""
    return replay.run("binder/start", "python", "tools/demo.py")


STEPS = {
    "the tree of HEAD": check_out,
    "what repo2docker makes of it": ask_repo2docker,
    "packages of apt.txt": install_packages,
    "an empty environment": make_environment,
    "the environment that repo2docker begins with": install_base,
    "the pip section of environment.yml": install_pins,
    "postBuild, and pip check": post_build,
    "start: import the package": import_all,
    "start: JupyterLab and TensorBoard": open_lab,
    "start: the quickstart": run_quickstart,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Replay Binder's build and start without Docker.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder to work in, which stays")
    keep = parser.parse_args(arguments).keep
    print("Not replayed: Docker, its base image, and conda, whose packages are at conda-forge. In their place are")
    print(f"{system()}, a virtual environment, and pip with the same versions from PyPI.", flush=True)
    if keep:
        return replay_in(keep.resolve())
    with tempfile.TemporaryDirectory(prefix="tfos-binder-") as folder:
        return replay_in(Path(folder))


def replay_in(folder: Path) -> int:
    replay = Replay(folder)
    return steps.take({title: partial(step, replay) for title, step in STEPS.items()})


def dependencies(replay: Replay) -> list[Any]:
    found: list[Any] = yaml.safe_load((replay.tree / "binder" / "environment.yml").read_text())["dependencies"]
    return found


def python_version(replay: Replay) -> str:
    """The one that environment.yml names, such as ``3.11``."""
    (version,) = (line.partition("=")[2] for line in dependencies(replay) if str(line).startswith("python="))
    return str(version)


def system() -> str:
    return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
