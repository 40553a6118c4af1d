"""What repo2docker, which builds Binder's images, makes of this repository: its Dockerfile, and what it begins with.

repo2docker begins with an environment of conda-forge's packages, whose versions a file of its own locks. Where only
PyPI is reached, the same versions are installed from there.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dockerfile
import yaml
from packaging.utils import canonicalize_name
from steps import StepFailed

PACKAGE = "jupyter-repo2docker"
# In this order: with the environment made before the repository is copied, a new commit leaves it as it is.
EXPECTED = (
    ("environment.yml by itself", "COPY", r"src/binder/environment\.yml"),
    ("apt.txt", "RUN", r"apt-get install .*openjdk-17-jre-headless"),
    ("environment.yml", "RUN", r"env update -p \S+ --file \"?binder/environment\.yml"),
    ("the repository", "COPY", r"src/ "),
    ("postBuild", "RUN", r"\./binder/postBuild"),
    ("start", "ENV", r"R2D_ENTRYPOINT .*/binder/start"),
)
# The names on PyPI of what conda-forge calls otherwise.
OTHER_NAMES = {
    "jupyterhub-base": "jupyterhub",
    "jupyterhub-singleuser": "jupyterhub",
    "nbconvert-core": "nbconvert",
    "python-fastjsonschema": "fastjsonschema",
}
NO_PYTHON_PACKAGES = frozenset({"python", "nodejs"})
WHERE = "import repo2docker; print(repo2docker.__path__[0])"
Run = Callable[..., str]
"""Runs a command, and gives what it printed."""


@dataclass(frozen=True)
class Base:
    """The environment that repo2docker begins with: what it asks for, and the versions of all that this brings."""

    asked: tuple[str, ...]
    locked: dict[str, str]

    @property
    def constraints(self) -> str:
        """The versions, for pip."""
        return "".join(f"{name}=={version}\n" for name, version in self.locked.items() if name != "python")


def install(folder: Path, python: Path, run: Run) -> Path:
    """repo2docker in an environment of its own; gives its Python."""
    run(str(python), "-m", "venv", str(folder))
    run(str(folder / "bin" / "pip"), "install", "--quiet", PACKAGE)
    return folder / "bin" / "python"


def describe(python: Path, tree: Path, run: Run) -> str:
    """The steps that its Dockerfile takes with our files. Raises StepFailed where one is missing."""
    text = run(str(python), "-m", "repo2docker", "--no-build", "--debug", str(tree))
    text = text[text.index("FROM ") :]  # what it says of its work comes first
    version = re.search(r'repo2docker\.version="([^"]+)"', text)
    return "\n".join([f"repo2docker {version[1] if version else 'of an unknown version'}", *ours(text), ""])


def ours(text: str) -> list[str]:
    """A line for each of the expected steps."""
    rest = [(step.cmd, " ".join(step.value)) for step in dockerfile.parse_string(text)]
    lines = []
    for what, keyword, pattern in EXPECTED:
        found = None
        while rest and found is None:
            cmd, value = rest.pop(0)
            found = re.search(pattern, value) if cmd == keyword else None
        if found is None:
            raise StepFailed(f"repo2docker's Dockerfile has no {keyword} for {what}, or not in its turn:\n{text}")
        lines.append(f"{what}: {keyword} {found[0]}")
    return lines


def base_of(python: Path, version: str, run: Run) -> Base:
    """The base environment for a version of Python such as ``3.11``, on this kind of machine."""
    folder = Path(run(str(python), "-c", WHERE).splitlines()[-1]) / "buildpacks" / "conda"
    asked = yaml.safe_load((folder / f"environment.py-{version}.yml").read_text(encoding="utf-8"))["dependencies"]
    kind = "64" if platform.machine() == "x86_64" else platform.machine()
    lock = (folder / f"environment.py-{version}-linux-{kind}.lock").read_text(encoding="utf-8")
    names = [re.split(r"[ =<>]", line)[0] for line in asked]
    return Base(tuple(own(name) for name in names if name not in NO_PYTHON_PACKAGES), locked(lock))


def locked(lock: str) -> dict[str, str]:
    """Names and versions of Python, and of the packages for Python: their builds are called py...."""
    found = re.findall(r"^https://\S+/([^/\s]+)-([^-/\s]+)-([^-/\s]+)\.(?:conda|tar\.bz2)", lock, re.MULTILINE)
    return {own(name): version for name, version, build in found if build.startswith("py") or name == "python"}


def own(name: str) -> str:
    """PyPI's name for a package of conda-forge."""
    return OTHER_NAMES.get(name, canonicalize_name(name))
