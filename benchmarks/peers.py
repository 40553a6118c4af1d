"""The libraries that benchmarks compare with, in a folder of their own: the project's environment stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "results" / "peers"
PACKAGES = {
    "torch": ["torch==2.13.0", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"],
    "tf_keras": ["tf_keras"],
    "tensorflowonspark": ["tensorflowonspark==2.2.5"],
}
INSTALL_SECONDS = 900


def have(name: str) -> bool:
    """Install a peer into ``FOLDER`` unless it is there; says why where it cannot be had."""
    if (FOLDER / name).is_dir():
        return True
    print(f"installing {name} into {FOLDER} for this benchmark alone", flush=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        print(f"{name} cannot be had, so its column is left out: {done.stderr.strip()[-300:]}")
    return done.returncode == 0


def use() -> None:
    """Let this process import the peers; what the project's environment has comes from there."""
    sys.path.append(str(FOLDER))
