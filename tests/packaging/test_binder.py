"""What Binder builds from: pins that agree with setup.py and with each other, and scripts that do what Binder asks."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOLD = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def tool(project: Path, name: str) -> ModuleType:
    """A script of ``tools/`` as a module."""
    if str(project / "tools") not in sys.path:
        sys.path.append(str(project / "tools"))  # for what it shares with others
    spec = importlib.util.spec_from_file_location(f"tools_{name}", project / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pinning(project: Path) -> ModuleType:
    return tool(project, "pins")


@pytest.fixture(scope="module")
def dependencies(pinning: ModuleType) -> list[Any]:
    found: list[Any] = yaml.safe_load(pinning.TARGET.read_text())["dependencies"]
    return found


@pytest.fixture(scope="module")
def pins(dependencies: list[Any]) -> dict[str, str]:
    """Names and versions of the pip section."""
    (section,) = (line["pip"] for line in dependencies if isinstance(line, dict))
    return dict(line.split("==") for line in section)


def requirements(name: str, extras: tuple[str, ...] = ("",)) -> list[Requirement]:
    """What an installed package asks for under this Python, with ``extras``."""
    every = [Requirement(line) for line in metadata.requires(name) or []]
    return [one for one in every if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras)]


def unmet(asked: list[Requirement], pins: dict[str, str]) -> list[str]:
    """Those that no pin meets."""
    held = ((one, pins.get(canonicalize_name(one.name), "")) for one in asked)
    return [f"{one} ({version or 'no pin'})" for one, version in held if not version or version not in one.specifier]


def test_conda_brings_python_and_pip_and_pip_brings_the_rest(dependencies: list[Any], pins: dict[str, str]) -> None:
    assert dependencies[:2] == ["python=3.11", "pip"]
    assert len(dependencies) == 3
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins.values())
    assert list(pins) == [canonicalize_name(name) for name in pins]


def test_environment_yml_is_as_the_tool_writes_it(pinning: ModuleType, pins: dict[str, str]) -> None:
    asked = pinning.asked_for(metadata.requires(pinning.PROJECT))
    assert asked <= set(pins)
    needed = {name: version for name, version in pins.items() if name not in asked}
    assert pinning.TARGET.read_text() == pinning.render({name: pins[name] for name in asked}, needed)


def test_pins_meet_what_setup_asks_for(pinning: ModuleType, pins: dict[str, str]) -> None:
    asked = requirements(pinning.PROJECT, pinning.EXTRAS)
    assert len(asked) > 15
    assert unmet(asked, pins) == []


def test_pins_meet_what_the_pinned_packages_need(pins: dict[str, str]) -> None:
    here = {canonicalize_name(found.metadata["Name"]): found.version for found in metadata.distributions()}
    # Another version of a package, in an environment of later days, may ask for other things.
    same = [name for name, version in pins.items() if here.get(name) == version]
    assert {name: missing for name in same if (missing := unmet(requirements(name), pins))} == {}


def test_everything_the_tutorials_import_is_pinned(project: Path, pins: dict[str, str]) -> None:
    modules = {name for path in (project / "notebooks").glob("*.ipynb") for name in imported(path)}
    assert "sklearn" in modules
    bringers = metadata.packages_distributions()
    foreign = modules - set(sys.stdlib_module_names) - {"tfos_magic", "tensorflowonspark"}  # the latter by install()
    pinned = {name for name in foreign if {canonicalize_name(found) for found in bringers.get(name, [])} & set(pins)}
    assert foreign - pinned == set()


def imported(notebook: Path) -> set[str]:
    """Top-level modules that the notebook's cells import."""
    cells = (cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code")
    plain = ("\n".join(line for line in source.splitlines() if not line.startswith("%")) for source in cells)
    nodes = [node for source in plain for node in ast.walk(ast.parse(source))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_apt_installs_a_java_that_spark_runs_on(project: Path) -> None:
    lines = (project / "binder" / "apt.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["openjdk-17-jre-headless"]


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_scripts_are_executable_and_end_at_the_first_failure(project: Path, name: str, tmp_path: Path) -> None:
    script = project / "binder" / name
    assert os.access(script, os.X_OK)
    beginning = script.read_text().partition("\n\n")[0]
    broken = tmp_path / name
    broken.write_text(f"{beginning}\nfalse\necho went on\n")
    assert subprocess.run(["bash", str(broken)], capture_output=True, check=False).stdout == b""


def built(project: Path, folder: Path, python: str = "true") -> list[str]:
    """What ``postBuild`` calls, where Python does no more than ``python`` says."""
    log = folder / "called"
    for name, does in {"pip": "true", "python": python, "jupyter": "true"}.items():
        stand_in = folder / "bin" / name
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(f'#!{shutil.which("sh")}\necho {name} "$@" >> {log}\n{does}\n')
        stand_in.chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    subprocess.run(["binder/postBuild"], cwd=project, env=environment, check=True, timeout=60)
    return log.read_text().splitlines()


def test_post_build_installs_this_project_and_no_more(project: Path, tmp_path: Path) -> None:
    called = built(project, tmp_path)
    assert [line for line in called if line.startswith("pip ")] == called[:1]
    assert "--no-deps" in called[0].split()
    assert called[0].split()[-1] == "."
    assert f"python tools/warm.py {tmp_path}/.cache/tfos_magic/spark.jsa" in called


def test_an_image_is_built_where_warming_fails_and_has_nothing_half_done(project: Path, tmp_path: Path) -> None:
    archive = tmp_path / ".cache" / "tfos_magic" / "spark.jsa"
    called = built(project, tmp_path, f"mkdir -p {archive.parent}; echo half > {archive}; exit 1")
    assert called[-1].startswith("jupyter labextension disable")
    assert not archive.exists()


LOCK = """\
https://example.org/conda-forge/linux-64/tzdata-2025b-h78e105d_0.conda#4222
https://example.org/conda-forge/linux-64/python-3.11.14-hd63d673_1_cpython.conda#4727
https://example.org/conda-forge/noarch/python-fastjsonschema-2.21.2-pyhe01879c_0.conda#23029
https://example.org/conda-forge/linux-64/jupyter_core-5.8.1-py311_0.tar.bz2#b7d8
"""


def test_of_the_lock_of_repo2docker_pythons_packages_are_taken_by_their_names_on_pypi(project: Path) -> None:
    locked = tool(project, "binder_image").locked(LOCK)
    assert locked == {"python": "3.11.14", "fastjsonschema": "2.21.2", "jupyter-core": "5.8.1"}


DOCKERFILE = """\
FROM base
COPY src/binder/environment.yml ${REPO_DIR}/binder/environment.yml
RUN apt-get -qq update && \\
apt-get install --yes openjdk-17-jre-headless
RUN mamba env update -p ${NB_PYTHON_PREFIX} --file "binder/environment.yml"
COPY src/ ${REPO_DIR}/
RUN ./binder/postBuild
ENV R2D_ENTRYPOINT="${REPO_DIR}/binder/start"
"""


def test_a_dockerfile_of_repo2docker_that_leaves_out_a_step_of_ours_is_refused(project: Path) -> None:
    image = tool(project, "binder_image")
    assert len(image.ours(DOCKERFILE)) == len(image.EXPECTED)
    lines = DOCKERFILE.splitlines(keepends=True)
    swapped = "".join([*lines[:-2], lines[-1], lines[-2]])
    for text in (DOCKERFILE.replace("./binder/postBuild", "true"), DOCKERFILE.replace("/start", ""), swapped):
        with pytest.raises(image.StepFailed, match=r"no RUN for postBuild|no ENV for start"):
            image.ours(text)


def started(project: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a command that ``start`` runs."""
    command = [str(project / "binder" / "start"), sys.executable, "-c", TOLD, "one", "two words", "$HOME"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    arguments, seen = json.loads(done.stdout)
    return arguments, seen


def test_start_becomes_the_command_it_is_given(project: Path) -> None:
    assert started(project)[0] == ["one", "two words", "$HOME"]
    replaced = [str(project / "binder" / "start"), sys.executable, "-c", "import os; print(os.getpid())"]
    with subprocess.Popen(replaced, stdout=subprocess.PIPE, text=True) as process:
        assert int(process.communicate(timeout=60)[0]) == process.pid


def test_start_passes_on_how_the_command_ends(project: Path) -> None:
    assert subprocess.run([str(project / "binder" / "start"), "sh", "-c", "exit 7"], check=False).returncode == 7


@pytest.mark.parametrize(
    ("prefix", "url"),
    [
        ({}, "/proxy/%PORT%/"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/"}, "/proxy/%PORT%/"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/x/"}, "/user/x/proxy/%PORT%/"),
    ],
)
def test_tensorboards_own_magic_finds_the_proxy_of_the_session(project: Path, prefix: dict[str, str], url: str) -> None:
    assert started(project, **prefix)[1]["TENSORBOARD_PROXY_URL"] == url


def test_start_asks_spark_for_little_and_keeps_what_was_asked_before(project: Path) -> None:
    seen = started(project, SPARK_SUBMIT_OPTS="-Dmine=1")[1]
    assert seen["SPARK_DRIVER_MEMORY"] == "512m"
    assert seen["SPARK_SUBMIT_OPTS"].split()[-1] == "-Dmine=1"
    assert started(project, SPARK_DRIVER_MEMORY="900m")[1]["SPARK_DRIVER_MEMORY"] == "900m"


def test_start_has_spark_map_the_classes_that_post_build_has_stored(project: Path, tmp_path: Path) -> None:
    assert "SharedArchiveFile" not in started(project, HOME=str(tmp_path))[1]["SPARK_SUBMIT_OPTS"]
    archive = tmp_path / ".cache" / "tfos_magic" / "spark.jsa"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f" -XX:SharedArchiveFile={archive} " in started(project, HOME=str(tmp_path))[1]["SPARK_SUBMIT_OPTS"]


def test_a_replay_ends_at_the_step_that_fails_and_says_why(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaying = tool(project, "binder")

    def fail(replay: Any) -> str:
        return str(replay.run("sh", "-c", "echo no such thing; exit 3"))

    (tmp_path / "tree").mkdir()
    monkeypatch.setattr(replaying, "STEPS", {"goes": lambda replay: "well", "breaks": fail, "later": fail})
    assert replaying.main(["--keep", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "conda" in said.splitlines()[0]
    assert "[1/3] goes ...\n    well\n" in said
    assert "sh ended with exit status 3\n    no such thing" in said
    assert "later" not in said
    monkeypatch.setattr(replaying, "STEPS", {"goes": lambda replay: "well"})
    assert replaying.main([]) == 0


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("https://github.com/owner/name.git", "gh/owner/name"),
        ("https://user:secret@github.com/owner/name", "gh/owner/name"),
        ("git@github.com:owner/name.git", "gh/owner/name"),
        ("ssh://git@gitlab.com/group/part/name.git", "gl/group%2Fpart%2Fname"),
        ("https://git.example.org:8443/a/b.git", "git/https%3A%2F%2Fgit.example.org%3A8443%2Fa%2Fb.git"),
        ("git@git.example.org:a/b.git", "git/https%3A%2F%2Fgit.example.org%2Fa%2Fb.git"),
    ],
)
def test_the_badge_names_the_repository_that_was_cloned(project: Path, origin: str, place: str) -> None:
    opened = "urlpath=lab%2Ftree%2Fnotebooks%2F00_quickstart.ipynb"
    assert tool(project, "badge").badge(origin, "main").endswith(f"](https://mybinder.org/v2/{place}/main?{opened})")


@pytest.mark.parametrize("origin", ["/srv/name", "../name", "name"])
def test_there_is_no_badge_for_what_binder_cannot_reach(project: Path, origin: str) -> None:
    with pytest.raises(ValueError, match="could clone"):
        tool(project, "badge").badge(origin, "main")
