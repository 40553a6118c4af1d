"""How the Makefile finds Java, or gets it. Java and apt-get are stand-ins: the suite must not install anything."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

APT_GET = """echo "$@" >> {log}
case "$*" in *install*) mkdir -p {jvms}/new/bin && cp {new} {jvms}/new/bin/java;; esac
"""


@dataclass(frozen=True)
class Machine:
    """A machine with the commands in ``bin`` and no others; ``apt_log`` has the arguments of each apt-get call."""

    project: Path
    bin: Path
    jvms: Path
    apt_log: Path

    def java_home(self, **environment: str) -> subprocess.CompletedProcess[str]:
        script = str(self.project / "tools" / "java.sh")
        variables = {"PATH": str(self.bin), "JVMS": str(self.jvms), **environment}
        shell = str(self.bin / "sh")
        return subprocess.run(
            [shell, script],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    def give_apt(self, *, user: int, packages: str = "openjdk-17-jre-headless") -> None:
        new = java(self.bin.parent / "new-java", "17", str(self.jvms / "new"))
        command(self.bin / "apt-get", APT_GET.format(log=self.apt_log, jvms=self.jvms, new=new))
        command(self.bin / "apt-cache", f'[ "$2" = "{packages}" ]')
        command(self.bin / "id", f"echo {user}")


@pytest.fixture
def machine(project: Path, tmp_path: Path) -> Machine:
    made = Machine(project, tmp_path / "bin", tmp_path / "jvms", tmp_path / "apt.log")
    made.bin.mkdir()
    for name in ("sh", "sed", "dirname", "env", "mkdir", "cp"):
        (made.bin / name).symlink_to(str(shutil.which(name)))
    return made


def test_java_home_wins_over_the_path(machine: Machine, tmp_path: Path) -> None:
    java(machine.bin / "java", "21", "/on/the/path")
    java(tmp_path / "home" / "bin" / "java", "17", "/named")
    assert machine.java_home(JAVA_HOME=str(tmp_path / "home")).stdout == "/named\n"


@pytest.mark.parametrize("old", ["1.8", "11"])
def test_a_java_home_that_is_too_old_is_passed_over(machine: Machine, tmp_path: Path, old: str) -> None:
    java(tmp_path / "home" / "bin" / "java", old, "/old")
    java(machine.bin / "java", "17", "/on/the/path")
    assert machine.java_home(JAVA_HOME=str(tmp_path / "home")).stdout == "/on/the/path\n"


def test_a_java_that_is_installed_but_not_on_the_path_is_found(machine: Machine) -> None:
    java(machine.jvms / "java-17" / "bin" / "java", "17", "/usr/lib/jvm/java-17")
    assert machine.java_home().stdout == "/usr/lib/jvm/java-17\n"


def test_root_gets_debians_java_after_the_package_lists_are_fetched(machine: Machine) -> None:
    machine.give_apt(user=0)
    found = machine.java_home()
    assert found.stdout == f"{machine.jvms / 'new'}\n", found.stderr
    update, install = machine.apt_log.read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("openjdk-17-jre-headless")


def test_a_release_without_java_17_gets_the_next_one(machine: Machine) -> None:
    machine.give_apt(user=0, packages="openjdk-21-jre-headless")
    assert machine.java_home().returncode == 0
    assert machine.apt_log.read_text().splitlines()[-1].endswith("openjdk-21-jre-headless")


def test_who_may_not_install_is_told_what_to_do(machine: Machine) -> None:
    machine.give_apt(user=1000)
    refused = machine.java_home()
    assert refused.returncode != 0
    assert refused.stdout == ""
    assert "apt-get update && apt-get install openjdk-17-jre-headless" in refused.stderr
    assert not machine.apt_log.exists()


def test_a_system_without_apt_is_told_what_to_do(machine: Machine) -> None:
    refused = machine.java_home()
    assert refused.returncode != 0
    assert "Java 17 or later is missing, and this system has no apt-get" in refused.stderr


def java(path: Path, version: str, home: str) -> Path:
    settings = f"    java.home = {home}\n    java.specification.version = {version}\n"
    return command(path, f"echo '{settings}' >&2")


def command(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o755)
    return path
