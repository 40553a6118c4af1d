"""Lint ``docker/Dockerfile``, carry out its steps without Docker, and try the two images.

Usage: ``python tools/images.py [--keep FOLDER]``, or ``make images``. Takes the commit that is checked out, not changes
since. Runs as root, because steps are carried out by chroot. Needs 20 GB of disk, and downloads 1 GB, unless pip has it
in its cache. Exits with 1 at the first step that fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import image_proofs
import steps
from image_replay import Context, Image, Stage, borrowed, build, run, sent, stages
from steps import StepFailed

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
NOT_REPLAYED = """\
Not replayed: Docker, its base image, and Kubernetes. In their place are a Debian root of the same packages, chroot, and
a stand-in for Kubernetes' API, which starts what Spark asks it for."""
MISSING = """
. tools/apt.sh
command -v mmdebstrap || apt_install "mmdebstrap (to replay images)" mmdebstrap
command -v ip || apt_install "ip (to replay images)" iproute2
"""
PROOFS: Mapping[str, Callable[[Mapping[str, Image]], str]] = {
    "executor: what is in it": lambda images: image_proofs.look_into(images["executor"]),
    "notebook: what is in it": lambda images: image_proofs.look_into(images["notebook"]),
    "notebook: JupyterLab starts, and ends": lambda images: image_proofs.start_lab(images["notebook"]),
    "notebook: the quickstart": lambda images: image_proofs.run_quickstart(images["notebook"]),
    "both: a session of one trains on executors of the other": lambda images: image_proofs.train_on_executors(
        images["notebook"], images["executor"]
    ),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Lint docker/Dockerfile, and replay its images without Docker.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder to work in, which stays")
    keep = parser.parse_args(arguments).keep
    print(NOT_REPLAYED, flush=True)
    if keep:
        keep.mkdir(parents=True)
        return replay_in(keep.resolve())
    with tempfile.TemporaryDirectory(prefix="tfos-images-") as folder:
        return replay_in(Path(folder))


def replay_in(folder: Path) -> int:
    text = DOCKERFILE.read_text(encoding="utf-8")
    variables, lent = borrowed()
    context = Context(folder / "context", {}, lent, variables)
    taken: dict[str, Callable[[], str]] = {
        "lint": lint,
        "what replays": prepare,
        "files of HEAD that go into the build": partial(check_out, context.files),
    }
    taken |= {f"build {stage.name}": partial(build_stage, stage, folder, context) for stage in stages(text)}
    taken |= {title: partial(proof, context.images) for title, proof in PROOFS.items()}
    return steps.take(taken)


def lint() -> str:
    """hadolint on the Dockerfile; its own version, as there is nothing else to say of a clean one."""
    hadolint = str(Path(sys.executable).with_name("hadolint"))
    run([hadolint, str(DOCKERFILE)], os.environ, "hadolint")
    return run([hadolint, "--version"], os.environ, "hadolint")


def prepare() -> str:
    if os.geteuid():
        raise StepFailed("Steps are carried out by chroot, which takes root.")
    subprocess.run(["sh", "-euc", MISSING], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return run(["mmdebstrap", "--version"], os.environ, "mmdebstrap")


def check_out(files: Path) -> str:
    """The tree of the commit that is checked out, less what ``.dockerignore`` leaves out."""
    with tempfile.TemporaryDirectory() as tree:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        for path in sorted(sent(Path(tree))):
            if (source := Path(tree, path)).is_file():
                (files / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, files / path)
    every = [path.stat().st_size for path in files.rglob("*") if path.is_file()]
    return f"{len(every)} files, {sum(every) / 1e6:.1f} MB"


def build_stage(stage: Stage, folder: Path, context: Context) -> str:
    context.images[stage.name] = build(stage, folder / stage.name, context)
    return f"FROM {stage.base}, and {len(stage.steps)} steps"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
