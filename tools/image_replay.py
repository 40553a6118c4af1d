"""A Dockerfile's steps, carried out in Debian roots by chroot: what `make images` builds with, where no Docker runs.

A stage that begins from ``debian:RELEASE-slim`` gets a root made by mmdebstrap: the same packages, and with them the
documentation that the image leaves out. Steps run as root, and are lent this machine's way to package registries, of
which nothing stays behind but its sources for apt. A step of another kind than those in ``STEPS`` is an error.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import dockerfile
from docker.utils import exclude_paths
from steps import StepFailed

STEP_SECONDS = 1800.0
LENT = "/.lent"
"""Where a root has what it is lent: files of pip's configuration, pip's cache, and certificates."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

# In a mount and process namespace of its own, which ends with its first process, as a container does.
ENTER = """
root=$1 owner=$2 folder=$3 count=$4; shift 4
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$count" -gt 0 ]; do mount --bind "$1" "$root$2"; shift 2; count=$((count - 1)); done
ip link set lo up
exec chroot --userspec="$owner" --groups= "$root" env --chdir="$folder" "$@"
"""


@dataclass(frozen=True)
class Stage:
    """A ``FROM`` and the steps below it."""

    name: str
    base: str
    steps: tuple[dockerfile.Command, ...]


@dataclass(frozen=True)
class Image:
    """What the steps of a stage have come to: its files, and how its processes start."""

    root: Path
    environment: Mapping[str, str]
    user: str = "0"
    folder: str = "/"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: tuple[str, ...] = ()

    def enter(self, *command: str, lent: Mapping[Path, str] | None = None, alone: bool = False) -> list[str]:
        """The command line that runs ``command`` in the root as its first process.

        With ``alone`` it has a network of its own, that reaches nothing.
        """
        binds = {Path("/etc/resolv.conf"): "/etc/resolv.conf", Path("/etc/hosts"): "/etc/hosts", **(lent or {})}
        for source, target in binds.items():
            make_target(source, self.root / target.lstrip("/"))
        pairs = [str(part) for pair in binds.items() for part in pair]
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] if alone else [])]
        place = [str(self.root), self.owner, self.folder, str(len(binds))]
        return [*spaces, "sh", "-euc", ENTER, "enter", *place, *pairs, *command]

    @property
    def variables(self) -> dict[str, str]:
        """What its processes find set."""
        return {"HOME": self._account[5], **self.environment}

    @property
    def owner(self) -> str:
        """The numbers of the user and the group that its processes run as."""
        return f"{self.user}:{self._account[3]}"

    @property
    def _account(self) -> list[str]:
        lines = (self.root / "etc" / "passwd").read_text(encoding="utf-8").splitlines()
        return next(entry for entry in (line.split(":") for line in lines) if entry[2] == self.user)


@dataclass(frozen=True)
class Context:
    """What steps are given: the files that are sent to a build, the images of other stages, and this machine's way to
    package registries, as variables and as paths that are lent."""

    files: Path
    images: dict[str, Image] = field(default_factory=dict)
    lent: Mapping[Path, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile, in their order."""
    found: list[Stage] = []
    for step in dockerfile.parse_string(text):
        if step.cmd == "FROM":
            base, _, name = (*step.value, "", str(len(found)))[:3]
            found.append(Stage(name, base, ()))
        else:
            found[-1] = replace(found[-1], steps=(*found[-1].steps, step))
    return found


def sent(files: Path) -> set[str]:
    """The paths below a folder that its ``.dockerignore`` lets into a build."""
    lines = (files / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return set(exclude_paths(str(files), [line for line in lines if line and not line.startswith("#")]))


def build(stage: Stage, folder: Path, context: Context) -> Image:
    """Carry out a stage in ``folder``, with a line for each step."""
    image = begin(stage.base, folder, context)
    for step in stage.steps:
        print(f"    {stage.name}: {shortened(step.original)}", flush=True)
        if step.cmd not in STEPS:
            raise StepFailed(f"line {step.start_line}: {step.cmd} is not replayed")
        image = STEPS[step.cmd](image, step, context)
    shutil.rmtree(image.root / LENT.lstrip("/"), ignore_errors=True)
    return image


def begin(base: str, folder: Path, context: Context) -> Image:
    """The image that a stage begins with."""
    if base in context.images:
        subprocess.run(["cp", "--archive", "--reflink=auto", context.images[base].root, folder], check=True)
        return replace(context.images[base], root=folder)
    known = re.fullmatch(r"debian:(\w+)-slim", base)
    if known is None:
        raise StepFailed(f"FROM {base}: only Debian's slim images are replayed")
    debootstrap(known[1], folder)
    return Image(folder, {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def debootstrap(release: str, folder: Path) -> None:
    """Make a Debian root from the sources that this machine has its own packages from."""
    settings = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as options:
        options.writelines(f"{line}\n" for line in settings.splitlines() if line.startswith("Acquire::"))
        options.flush()
        sources = [*Path("/etc/apt/sources.list.d").glob("*.sources"), *Path("/etc/apt").glob("sources.list")]
        made = ["mmdebstrap", "--variant=minbase", f"--aptopt={options.name}", release, str(folder), *map(str, sources)]
        run(made, dict(os.environ), f"mmdebstrap {release}")


def run_step(image: Image, step: dockerfile.Command, context: Context) -> Image:
    command = step.value if step.json else (*image.shell, *step.value)
    variables = {**image.variables, **context.variables}
    run(image.enter(*command, lent=context.lent), variables, f"line {step.start_line}: {shortened(step.original)}")
    return image


def copy_step(image: Image, step: dockerfile.Command, context: Context) -> Image:
    """Copy files, whose owner is root unless ``--chown`` says otherwise; of a folder, what is in it."""
    flags = dict(flag.lstrip("-").split("=", 1) for flag in step.flags)
    origin = context.images[flags["from"]].root if "from" in flags else context.files
    *sources, target = step.value
    to = image.root / os.path.join(image.folder, target).lstrip("/")
    for source in sources:
        place = origin / source.lstrip("/")
        if not place.exists():
            raise StepFailed(f"line {step.start_line}: there is no {source} to copy")
        inside = place.is_file() and (target.endswith("/") or len(sources) > 1)
        put(place, to / place.name if inside else to, flags.get("chown", "0:0"))
    return image


def put(source: Path, target: Path, owner: str) -> None:
    """Copy a file, or what is in a folder into one that may be there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cp", "--recursive", "--preserve=mode", source, f"{folder}/copy"], check=True)
        subprocess.run(["chown", "--recursive", owner, f"{folder}/copy"], check=True)
        subprocess.run(["cp", "--archive", "--no-target-directory", f"{folder}/copy", target], check=True)


def env_step(image: Image, step: dockerfile.Command, context: Context) -> Image:
    pairs = zip(step.value[::2], step.value[1::2], strict=True)
    added = {name: expanded(shlex.split(value)[0], image.environment) for name, value in pairs}
    return replace(image, environment={**image.environment, **added})


def workdir_step(image: Image, step: dockerfile.Command, context: Context) -> Image:
    folder = os.path.join(image.folder, step.value[0])
    (image.root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return replace(image, folder=folder)


def healthcheck_step(image: Image, step: dockerfile.Command, context: Context) -> Image:
    return replace(image, health=tuple(step.value[1:]))


STEPS: Mapping[str, Callable[[Image, dockerfile.Command, Context], Image]] = {
    "RUN": run_step,
    "COPY": copy_step,
    "ENV": env_step,
    "WORKDIR": workdir_step,
    "HEALTHCHECK": healthcheck_step,
    "USER": lambda image, step, context: replace(image, user=step.value[0]),
    "SHELL": lambda image, step, context: replace(image, shell=tuple(step.value)),
    "ENTRYPOINT": lambda image, step, context: replace(image, entrypoint=tuple(step.value), command=()),
    "CMD": lambda image, step, context: replace(image, command=tuple(step.value)),
    "EXPOSE": lambda image, step, context: image,
}


def borrowed() -> tuple[dict[str, str], dict[Path, str]]:
    """How this machine's pip reaches its indexes: as variables for a root, and the paths that these name in it."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True)
    settings = dict(line.split("=", 1) for line in said.stdout.splitlines())
    named = {name.partition(".")[2].strip("."): value.strip("'") for name, value in settings.items()}
    cache = Path(os.environ.get("PIP_CACHE_DIR", "~/.cache/pip")).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    found = re.findall(r"(file://)?(/[\w./-]+)", " ".join(named.values()))
    paths = {Path(path).parent if index else Path(path) for index, path in found}  # an index names files beside it
    lent = {path: f"{LENT}{path}" for path in sorted({cache, *filter(Path.exists, paths)})}
    pip = {f"PIP_{name.upper().replace('-', '_')}": moved(value, lent) for name, value in named.items()}
    proxies = {name: os.environ[name] for name in PROXIES if name in os.environ}
    return {**proxies, **pip, "PIP_CACHE_DIR": lent[cache], "PIP_NO_CACHE_DIR": "0"}, lent


def moved(value: str, lent: Mapping[Path, str]) -> str:
    """A setting with the paths that it names replaced by where a root has them."""
    for path, place in lent.items():
        value = re.sub(rf"(?<![\w.]){re.escape(str(path))}(?![\w.-])", place, value)
    return value


def make_target(source: Path, target: Path) -> None:
    """Make what ``source`` can be mounted on."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir(exist_ok=True) if source.is_dir() else target.touch()


def run(command: list[str], variables: Mapping[str, str], what: str) -> str:
    """Run a command, and give what it printed; ``what`` it was is said when it fails."""
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STEP_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"{what}\ndid not end within {STEP_SECONDS:.0f} s") from error
    if done.returncode:
        raise StepFailed(f"{what}\nended with exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def expanded(value: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], ""), value)


def shortened(text: str, width: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 4]} ..."
