"""Build the wheel and the source archive, check them, and load the extension from the wheel in an empty environment.

Usage: ``.venv/bin/python tools/dist.py``, or ``make dist``. Both end up in ``dist/``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
CELL = "%load_ext tfos_magic\n%tfos status\n%tfos start --help"


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    built = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="tfos-dist-") as folder:
        run(sys.executable, "-m", "venv", folder)
        python = str(Path(folder, "bin", "python"))
        run(python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", str(wheel))
        said = run(python, "-I", "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", CELL, cwd=folder)
    if "There is no cluster." not in said or "--start-timeout" not in said:
        print(f"The extension does not work from {wheel.name}:\n{said}", file=sys.stderr)
        return 1
    print("\n".join(f"{path.relative_to(ROOT)} ({path.stat().st_size / 1e3:.0f} kB)" for path in built))
    print("Both are whole, and the extension loads from the wheel where nothing else is installed.")
    return 0


def run(*command: str, cwd: str | Path = ROOT) -> str:
    """What a command prints. What it complains of is shown, and ends this program, where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=900)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
