"""What importing the package costs in the environment it is developed in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    *("tensorflow", "keras", "tensorboard", "pyspark", "py4j", "numpy", "pandas", "pyarrow"),
    *("IPython", "ipykernel", "ipywidgets", "anywidget", "zmq", "grpc", "matplotlib"),
}


def test_importing_the_package_loads_no_heavy_module() -> None:
    assert _modules_after("import tfos_magic") & HEAVY == set()


def test_importing_the_widgets_loads_neither_spark_nor_tensorflow() -> None:
    assert _modules_after("import tfos_magic.widgets") & {"tensorflow", "keras", "pyspark", "py4j"} == set()


def test_what_a_trainer_fits_an_estimator_with_loads_neither_spark_nor_ipython() -> None:
    assert _modules_after("import tfos_magic.ml.fit_on_workers") & {"pyspark", "py4j", "IPython"} == set()


def test_the_probe_would_see_a_heavy_module() -> None:
    assert "numpy" in _modules_after("import tfos_magic, numpy")


def test_loading_the_extension_loads_neither_spark_nor_tensorflow() -> None:
    code = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_line_magic("load_ext", "tfos_magic")
"""
    assert _modules_after(code) & {"tensorflow", "keras", "pyspark", "py4j"} == set()


def test_the_editable_install_finds_the_widgets_in_the_top_folder(project: Path) -> None:
    found = _python("import tfos_magic.widgets as w, tfos_magic as t; print([t.__file__, w.__file__])")
    assert found == str([str(project / "tfos_magic" / "__init__.py"), str(project / "widgets" / "__init__.py")])


def _modules_after(code: str) -> set[str]:
    """Top-level names of all modules loaded once ``code`` has run in a fresh Python."""
    listing = _python(f"{code}\nimport json, sys\nprint(json.dumps([n.partition('.')[0] for n in sys.modules]))")
    return set(json.loads(listing))


def _python(code: str) -> str:
    """Isolated from PYTHONPATH and the working folder: only what is installed is found."""
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
