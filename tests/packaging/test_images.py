"""The images for Kubernetes: steps that can be replayed, versions that stand in one place, and how executors start.

What takes root, a network and minutes is in ``make images``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

DEBIANS_PYTHON = "3.11.2"
POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.5:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-application-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "training-exec-2",
    "SPARK_RESOURCE_PROFILE_ID": "1",
    "SPARK_HOME": "/opt/pyspark",
}
"""What Spark's Kubernetes backend sets, and the image's own SPARK_HOME."""


@pytest.fixture(scope="module")
def replaying(project: Path) -> ModuleType:
    if str(project / "tools") not in sys.path:
        sys.path.append(str(project / "tools"))
    import image_replay

    return image_replay  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def text(project: Path) -> str:
    return (project / "docker" / "Dockerfile").read_text(encoding="utf-8")


def test_each_stage_begins_from_debian_or_another_and_has_only_steps_that_are_replayed(
    replaying: ModuleType, text: str
) -> None:
    stages = replaying.stages(text)
    known = {"debian:bookworm-slim"}
    for stage in stages:
        assert stage.base in known
        assert {step.cmd for step in stage.steps} <= set(replaying.STEPS)
        known.add(stage.name)
    assert [stage.name for stage in stages][-2:] == ["executor", "notebook"]


def test_what_is_copied_is_there_and_not_ignored(replaying: ModuleType, text: str, project: Path) -> None:
    copied = [step.value[:-1] for stage in replaying.stages(text) for step in stage.steps if step.cmd == "COPY"]
    sources = {source for each in copied for source in each if not source.startswith("/")}
    assert {source for source in sources if not (project / source).exists()} == set()
    sent = replaying.sent(project)
    assert {
        source for source in sources if source not in sent and not any(p.startswith(f"{source}/") for p in sent)
    } == set()
    assert not any("__pycache__" in path or path.startswith((".git/", ".venv", "tests")) for path in sent)


def test_versions_of_packages_stand_in_environment_yml_alone(text: str, project: Path) -> None:
    pins = project / "binder" / "environment.yml"
    *_, (section,) = (
        line.values() for line in yaml.safe_load(pins.read_text())["dependencies"] if isinstance(line, dict)
    )
    (script,) = re.findall(r"sed -n ('.*?') ", text)
    taken = subprocess.run(["sed", "-n", *shlex.split(script), pins], check=True, capture_output=True, text=True).stdout
    assert taken.split() == section
    assert not re.search(r"[a-z]==\d", text)


def test_what_is_pinned_runs_on_the_python_of_debian(project: Path) -> None:
    (section,) = re.findall(r"- pip:\n(.*)", (project / "binder" / "environment.yml").read_text(), re.DOTALL)
    pins = dict(re.findall(r"- (\S+)==(\S+)", section))
    found = [
        each.metadata
        for each in metadata.distributions()
        if pins.get(canonicalize_name(each.metadata["Name"])) == each.version
    ]
    assert len(found) > 100
    late = {
        each["Name"]: each.get("Requires-Python")
        for each in found
        if DEBIANS_PYTHON not in SpecifierSet(each.get("Requires-Python") or "")
    }
    assert late == {}


def test_java_and_python_are_those_of_binder(text: str, project: Path) -> None:
    java = (project / "binder" / "apt.txt").read_text().splitlines()[-1]
    python = yaml.safe_load((project / "binder" / "environment.yml").read_text())["dependencies"][0].replace("=", "")
    assert f" {java} " in text
    assert f"/opt/venv/lib/{python}/site-packages/pyspark" in text


def test_processes_of_both_images_have_a_users_number_that_is_not_roots(replaying: ModuleType, text: str) -> None:
    for stage in replaying.stages(text)[-2:]:
        assert [step.value for step in stage.steps if step.cmd == "USER"] == [("1000",)]


def test_hadolint_finds_nothing(project: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "docker/Dockerfile"], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def ran(project: Path, folder: Path, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """The arguments that the entrypoint gives to tini."""
    tini = folder / "tini"
    tini.write_text(f"#!{shutil.which('bash')}\nprintf '%s\\0' \"$@\"\n")
    tini.chmod(0o755)
    command = [str(project / "docker" / "entrypoint.sh"), *arguments]
    environment = {"PATH": f"{folder}:/usr/bin:/bin", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split("\0")[:-1]


def test_the_entrypoint_starts_the_executor_that_the_pod_describes(project: Path, tmp_path: Path) -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Done.{number}=a b" for number in range(11)}
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_CLASSPATH": "/extra/*"}
    assert ran(project, tmp_path, ["executor"], {**POD, **options, **more}) == [
        *("-s", "--", "java"),
        *(f"-Done.{number}=a b" for number in range(11)),
        *("-Xms1024m", "-Xmx1024m", "-cp", "/opt/spark/conf:/extra/*:/opt/pyspark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://CoarseGrainedScheduler@10.0.0.5:7078"),
        *("--executor-id", "2", "--cores", "4", "--app-id", "spark-application-1", "--hostname", "10.0.0.7"),
        *("--resourceProfileId", "1", "--podName", "training-exec-2"),
    ]


def test_the_entrypoint_ends_without_what_an_executor_needs(project: Path, tmp_path: Path) -> None:
    for name in set(POD):
        with pytest.raises(subprocess.CalledProcessError) as ended:
            ran(project, tmp_path, ["executor"], {key: value for key, value in POD.items() if key != name})
        assert name in ended.value.stderr


def test_the_entrypoint_runs_any_other_command_as_it_stands(project: Path, tmp_path: Path) -> None:
    assert ran(project, tmp_path, ["python", "-c", "two words"], {}) == ["-s", "--", "python", "-c", "two words"]


def test_a_folder_is_copied_into_one_that_is_there_and_its_files_keep_their_mode(
    replaying: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    (tmp_path / "source" / "inner" / "script").write_text("new")
    (tmp_path / "source" / "inner" / "script").chmod(0o755)
    (tmp_path / "target" / "inner").mkdir(parents=True)
    (tmp_path / "target" / "inner" / "older").touch()
    replaying.put(tmp_path / "source", tmp_path / "target", f"{os.getuid()}:{os.getgid()}")
    assert {path.name for path in (tmp_path / "target" / "inner").iterdir()} == {"older", "script"}
    assert os.access(tmp_path / "target" / "inner" / "script", os.X_OK)


def test_settings_of_pip_name_what_is_lent_by_its_place_in_the_root(replaying: ModuleType) -> None:
    lent = {Path("/srv/index"): "/.lent/srv/index"}
    assert (
        replaying.moved("file:///srv/index/simple /srv/index-2", lent) == "file:///.lent/srv/index/simple /srv/index-2"
    )
    assert replaying.moved("https://example.org/srv/index", lent) == "https://example.org/srv/index"
