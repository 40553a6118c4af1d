"""Smoke tests in environments of their own, over the versions of Spark, Keras and TensorFlow that PyPI has.

Usage: ``python3 tools/matrix.py [NAME …]``, or ``make matrix [ONLY=NAME]``; without a name all of ``ENVIRONMENTS``.
What passed, and when, goes to ``tools/matrix.json``, and from there into README's table. ``--canary`` runs the tests of
training with ``nightly`` instead, and writes nothing. Environments are kept in ``.venv-matrix`` until what is to be in
them changes; a new version on PyPI is taken by ``--upgrade``.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
FOLDER, RESULTS, README = ROOT / ".venv-matrix", ROOT / "tools" / "matrix.json", ROOT / "README.md"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
FLOORS = {"pyspark": "4.0.0", "keras": "3.15.0", "tensorflow-cpu": "2.21.0"}
"""The oldest versions that setup.py lets in, all of which ``oldest`` has; ``tests/packaging`` compares the two."""

# What these few tests need, of all that setup.py's ``test`` has.
TOOLS = ("ipykernel", "jupyter-client", "pytest>=8.3", "pytest-timeout>=2.3", "scikit-learn")
SMOKE = (
    "tests/unit/training/test_seams.py",
    "tests/frames/test_spark.py::test_three_is_added_in_any_partitioning",
    "tests/frames/test_spark.py::test_a_model_predicts_every_row_once_in_any_partitioning",
    "tests/frames/test_aggregate.py::test_sums_by_parity",
    "tests/kernel/test_cells.py::test_columns_of_every_kind_come_as_the_options_say_and_the_status_shows_them",
    "tests/ml/test_estimators.py::test_weights_are_those_of_a_cell_and_of_one_process",
    "tests/spark/test_feed.py::test_what_is_fed_again_with_other_cores_comes_in_the_partitions_that_it_had",
    "tests/spark/test_resume.py::test_a_run_whose_cluster_died_ends_in_another_with_the_weights_it_would_have_had",
    "tests/spark/test_scans.py::test_a_scan_in_place_reads_no_rows_in_the_jvm",
    "tests/spark/test_sessions.py::test_a_connect_session_trains_and_refuses_as_cleanly",
    "tests/spark/test_tfrecord.py::test_spark_reads_back_what_it_wrote_with_an_inferred_schema",
    "tests/spark/test_types.py",
)
PATIENCE = ("-o", "timeout=600")
CANARY = ("tests/unit/training/test_seams.py", "tests/training")
BEGIN, END = "<!-- written by `make matrix` -->", "<!-- end of what it wrote -->"
HEAD = ("Spark", "Keras", "TensorFlow", "smoke tests passed", "on")


@dataclass(frozen=True)
class Environment:
    """What is installed: the project with ``extras`` and ``packages``, and then, whatever the project says of their
    versions, ``instead`` of Keras and TensorFlow."""

    packages: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    extras: str = "cpu,connect"

    @property
    def digest(self) -> str:
        """Changes with what is to be in it."""
        return hashlib.sha256(f"{self}{(ROOT / 'setup.py').read_text(encoding='utf-8')}".encode()).hexdigest()


ENVIRONMENTS = {
    **{f"pyspark-{spark}": Environment((*TOOLS, f"pyspark[connect]=={spark}.*")) for spark in SPARKS},
    "oldest": Environment((*TOOLS, *(f"{name}=={version}" for name, version in FLOORS.items()))),
    "nightly": Environment(TOOLS, ("keras-nightly", "tensorflow-cpu")),
    "canary": Environment((), ("keras-nightly", "tensorflow-cpu"), "cpu,test"),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [name for name in ENVIRONMENTS if name != "canary"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--canary", action="store_true", help="the tests of training, with Keras's nightly build")
    parser.add_argument("--upgrade", action="store_true", help="make the environments anew")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(known):
        parser.error(f"there is no {min(unknown)}; there are {', '.join(known)}")
    if options.canary:
        return run(made("canary", options.upgrade), CANARY, "-n", "2", "--dist", "loadfile")
    failed = [name for name in options.names or known if not tried(name, options.upgrade)]
    print(f"failed: {', '.join(failed)}" if failed else "All passed.")
    return len(failed)


def tried(name: str, upgrade: bool) -> bool:
    """Run the smoke tests in one environment, and write down how that went."""
    python = made(name, upgrade)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        run(python, SMOKE, f"--junitxml={report}")
        counts = read(report)
    note(name, {**versions(python), **counts, "on": datetime.date.today().isoformat()})
    print(f"{name}: {counts['passed']} of {counts['tests']} passed", flush=True)
    return counts["passed"] == counts["tests"]


def made(name: str, upgrade: bool) -> Path:
    """The Python of an environment, which is made where it is not there as it is to be."""
    wanted, folder = ENVIRONMENTS[name], FOLDER / name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    if not upgrade and stamp.exists() and stamp.read_text() == wanted.digest:
        return python
    print(f"{name}: installing (a GB or two, some minutes) ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    begin(folder, wanted)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = [*pip, "install", "--upgrade", "--upgrade-strategy", "eager"]
    subprocess.run([*install, "--editable", f"{ROOT}[{wanted.extras}]", *wanted.packages], check=True)
    if wanted.instead:
        subprocess.run([*pip, "uninstall", "--yes", "keras"], check=True)
        subprocess.run([*pip, "install", "--upgrade", "--pre", "--no-deps", *wanted.instead], check=True)
    stamp.write_text(wanted.digest)
    return python


def begin(folder: Path, wanted: Environment) -> None:
    """A new environment, or one that shares the files of another until pip puts others in their place.

    pip never writes into a file that is there: it makes another one.
    """
    for name, other in ENVIRONMENTS.items():
        stamp = FOLDER / name / ".installed"
        if other.extras == wanted.extras and stamp.exists() and stamp.read_text() == other.digest:
            shutil.copytree(stamp.parent, folder, symlinks=True, copy_function=os.link)
            (folder / stamp.name).unlink()
            return
    subprocess.run([ROOT / "tools" / "venv.sh", os.environ.get("PYTHON", "python3"), folder], check=True)


def run(python: Path, tests: Iterable[str], *options: str) -> int:
    """Run ``tests`` with that Python, as if its environment were activated."""
    java = subprocess.run([ROOT / "tools" / "java.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYSPARK_PYTHON": str(python), "JAVA_HOME": java}
    environment.pop("PYSPARK_DRIVER_PYTHON", None)
    return subprocess.run(
        [python, "-m", "pytest", "-q", *PATIENCE, *options, *tests], cwd=ROOT, env=environment
    ).returncode


def read(report: Path) -> dict[str, Any]:
    """How many tests there were, how many passed, and the names of those that did not."""
    if not report.exists():
        return {"tests": 1, "passed": 0, "failed": ["the tests were not run"]}
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case.get("name", "") for case in cases if len(case.findall("failure") + case.findall("error"))]
    skipped = sum(bool(case.findall("skipped")) for case in cases)
    return {"tests": len(cases) - skipped, "passed": len(cases) - skipped - len(failed), "failed": failed}


def versions(python: Path) -> dict[str, str]:
    """Of Spark, Keras and TensorFlow, as they say themselves."""
    code = (
        "import json, keras, pyspark, tensorflow as tf;"
        "print(json.dumps([pyspark.__version__, keras.__version__, tf.__version__]))"
    )
    told = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(zip(("pyspark", "keras", "tensorflow"), json.loads(told.splitlines()[-1]), strict=True))


def note(name: str, result: Mapping[str, Any]) -> None:
    """Write a result down, and README's table anew."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = {each: {**results, name: result}[each] for each in ENVIRONMENTS if each in {*results, name}}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    table = f"{BEGIN}\n{render(results)}\n{END}"
    README.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, a row for each environment."""
    rows = [
        (each["pyspark"], each["keras"], each["tensorflow"], f"{each['passed']} of {each['tests']}", each["on"])
        for each in results.values()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
