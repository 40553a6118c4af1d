"""What ``make matrix`` found is what README and setup.py say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def matrix(project: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tfos_matrix", project / "tools" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_what_passed(matrix: ModuleType, project: Path) -> None:
    results = json.loads((project / "tools" / "matrix.json").read_text(encoding="utf-8"))
    assert matrix.render(results) in (project / "README.md").read_text(encoding="utf-8")


def test_the_floors_are_the_oldest_versions_that_are_tried(matrix: ModuleType, project: Path) -> None:
    setup = (project / "setup.py").read_text(encoding="utf-8")
    for name, tried in matrix.FLOORS.items():
        floors = re.findall(rf"[\"']{name}(?:\[connect\])?>=([\d.]+)", setup)
        assert tried in {f"{floor}.0" for floor in floors}, f"{name}: setup.py says {floors}, tried is {tried}"


def test_the_oldest_spark_that_is_let_in_has_passed(matrix: ModuleType, project: Path) -> None:
    results = json.loads((project / "tools" / "matrix.json").read_text(encoding="utf-8"))
    oldest = results[f"pyspark-{matrix.FLOORS['pyspark'].removesuffix('.0')}"]
    assert oldest["passed"] == oldest["tests"] > 10, oldest["failed"]
    for name, result in results.items():
        assert name == "nightly" or not result["failed"], f"{name}: {result['failed']}"


def test_every_smoke_test_is_there(matrix: ModuleType, project: Path) -> None:
    for test in (*matrix.SMOKE, *matrix.CANARY):
        path, _, name = test.partition("::")
        assert (project / path).exists(), test
        assert f"def {name}" in (project / path).read_text(encoding="utf-8") if name else True, test


def test_a_report_counts_what_passed_and_names_what_did_not(matrix: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b'><failure/></testcase>"
        "<testcase name='c'><skipped/></testcase></testsuite></testsuites>"
    )
    assert matrix.read(report) == {"tests": 2, "passed": 1, "failed": ["b"]}
    assert matrix.read(tmp_path / "none.xml")["passed"] == 0
