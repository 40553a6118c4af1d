"""One program for TensorFlowOnSpark, run by the original and by tfos_magic's door for it, in turns.

It starts an empty cluster, feeds rows as lists of numbers, one by one as the original's MNIST example takes them,
feeds rows of NumPy arrays in batches, and has rows answered; on local-cluster[2,1,2048]. A DataFrame is fed by its rows
there and as it is here. Shown are medians of the turns.

    python benchmarks/tfos.py [--turns 3] [--rows 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import peers
from tfos_peer import _STAND_IN

PROGRAM = Path(__file__).with_name("tfos_program.py")
SECONDS = 600
LINES = {
    "empty cluster": ("s", "an empty cluster, up and down"),
    "lists": ("rows/s", "rows of Python numbers, one by one"),
    "arrays": ("rows/s", "rows of NumPy arrays, 100 at a time"),
    "dataframe": ("rows/s", "rows of a DataFrame, 100 at a time"),
    "answers": ("rows/s", "rows answered"),
}
AIMS = {"lists": 3.0, "arrays": 20.0, "dataframe": 20.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20000)
    asked = parser.parse_args()
    original = peers.have("tensorflowonspark")
    ours, theirs = [], []
    for _ in range(asked.turns):
        if original:
            theirs.append(run([sys.executable, str(PROGRAM), "theirs", str(asked.rows)], peer=True))
        ours.append(run([sys.executable, "-m", "tfos_magic.tensorflowonspark", str(PROGRAM), "ours", str(asked.rows)]))
    for name, (unit, text) in LINES.items():
        mine = statistics.median(turn[name] for turn in ours)
        if not theirs:
            print(f"{text}: {mine:,.4g} {unit}")
            continue
        other = statistics.median(turn[name] for turn in theirs)
        ratio = other / mine if unit == "s" else mine / other
        aim = f" (aim {AIMS[name]:g})" if name in AIMS else ""
        print(f"{text}: {mine:,.4g} {unit}, the original {other:,.4g} {unit}: {ratio:.1f} times as fast{aim}")


def run(command: list[str], peer: bool = False) -> dict[str, float]:
    """Run the program in a folder and a process of its own, and give what it measured."""
    paths = [os.environ.get("PYTHONPATH", "")]
    if peer:
        (peers.FOLDER / "pkg_resources.py").write_text(_STAND_IN)
        paths.insert(0, str(peers.FOLDER))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "-1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)
    said = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if not said:
        raise RuntimeError(f"{' '.join(command)} measured nothing:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    measured: dict[str, float] = json.loads(said[0].removeprefix("measured "))
    return measured


if __name__ == "__main__":
    main()
