"""Pin what Binder installs: resolve it anew and write ``binder/environment.yml``.

Usage: ``.venv/bin/python tools/pins.py``, or ``make pins``. pip resolves this project's extras and what the tutorials
import. Of a package that the running environment has, its version is kept: Binder gets what the tests ran with.

All versions stand in ``environment.yml`` itself, and not in a file of constraints beside it: repo2docker installs the
environment before it copies the repository, and keeps that layer of the image for later commits, but only as long as no
line of the ``pip:`` section names a file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "binder" / "environment.yml"
PYTHON = (3, 11)
PROJECT = "tfos-magic"
EXTRAS = ("cpu", "notebook", "sweep")
# The classic interface is in every image of repo2docker, and each of its versions is made for one of JupyterLab.
BESIDES = ("matplotlib", "notebook", "scikit-learn")
# They are as old as the environment is, for no reason of ours.
INSTALLERS = frozenset({"pip", "setuptools", "wheel"})
# docker/ installs the same on Debian 12, whose Python is 3.11.2; later versions of these ask for 3.11.5.
HELD_BACK = {"soupsieve": "<3"}

HEAD = """\
# Written by `make pins`; what to pin stands in setup.py and tools/pins.py.
# conda brings Python and pip alone, in the versions of repo2docker's own environment, which is locked by itself.
name: tfos_magic
channels:
  - conda-forge
dependencies:
  - python={python}
  - pip
  - pip:
"""


def main() -> int:
    if sys.version_info[:2] != PYTHON:
        print(f"Binder runs Python {dotted(PYTHON)}, and this is {sys.version}: its pins would be others.")
        return 1
    wanted, needed = resolve(kept())
    TARGET.write_text(render(wanted, needed), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {len(wanted)} packages that are asked for, {len(needed)} that these need")
    return 0


def kept() -> dict[str, str]:
    """Names and versions of what is installed here, but for this project, what installs, and what is held back."""
    here = {canonicalize_name(found.metadata["Name"]): found.version for found in metadata.distributions()}
    return {name: version for name, version in here.items() if name not in INSTALLERS | {PROJECT, *HELD_BACK}}


def resolve(kept: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Give names and versions of what setup.py and the tutorials ask for, and of what these need in turn.

    pip installs nothing, but fetches what tells it no requirements otherwise. ``kept`` are versions that it may not
    change.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.writelines(f"{name}=={version}\n" for name, version in kept.items())
        constraints.writelines(f"{name}{versions}\n" for name, versions in HELD_BACK.items())
        constraints.flush()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        options = ["--dry-run", "--ignore-installed", "--report", "-", "--constraint", constraints.name]
        command = [*pip, *options, f"{ROOT}[{','.join(EXTRAS)}]", *BESIDES]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    found = {canonicalize_name(entry["metadata"]["name"]): entry["metadata"] for entry in report["install"]}
    wanted = asked_for(found.pop(PROJECT)["requires_dist"])
    versions = {name: entry["version"] for name, entry in found.items()}
    return (
        {name: version for name, version in versions.items() if name in wanted},
        {name: version for name, version in versions.items() if name not in wanted},
    )


def asked_for(requirements: list[str]) -> set[str]:
    """The names among the project's ``requirements`` that Binder's extras take in, and those besides."""
    every = map(Requirement, requirements)
    chosen = (
        found for found in every if found.marker is None or any(found.marker.evaluate({"extra": e}) for e in EXTRAS)
    )
    return {canonicalize_name(found.name) for found in chosen} | set(BESIDES)


def render(wanted: dict[str, str], needed: dict[str, str]) -> str:
    """The text of ``environment.yml``."""
    lines = ["# Asked for by setup.py, or by the tutorials:", *pins(wanted), "# What these need:", *pins(needed)]
    return HEAD.format(python=dotted(PYTHON)) + "".join(f"      {line}\n" for line in lines)


def pins(versions: dict[str, str]) -> list[str]:
    return [f"- {name}=={version}" for name, version in sorted(versions.items())]


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.exit(main())
