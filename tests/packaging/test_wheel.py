"""The wheel holds all it needs, and installs alone into an empty environment."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

SOURCES = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "tfos_magic", "widgets"]
SHIPPED = {".py", ".js", ".css", ".html", "py.typed"}
PROBE = """
import importlib.util, json
import tfos_magic, tfos_magic.widgets
print(json.dumps({
    "version": tfos_magic.__version__,
    "package": tfos_magic.__file__,
    "widgets": tfos_magic.widgets.__file__,
    "top level widgets": importlib.util.find_spec("widgets") is not None,
}))
"""
IMPORT_ALL = """
import importlib, pkgutil
import tfos_magic
for module in pkgutil.walk_packages(tfos_magic.__path__, "tfos_magic."):
    print(module.name)
    importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that no leftover of an earlier build gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (project / name).is_dir():
            shutil.copytree(project / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(project / name, source / name)
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)])
    (built,) = (source / "dist").glob("tfos_magic-*-py3-none-any.whl")
    return built


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and nothing else, not even what it requires."""
    return _environment(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel, and with what it requires borrowed from the running environment."""
    made = _environment(tmp_path_factory.mktemp("required"), wheel)
    (site,) = made.parent.parent.glob("lib/python*/site-packages")
    # .pth files of a folder that is named in a .pth file are not read: the editable install stays out.
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


@pytest.fixture(scope="module")
def installed(python: Path) -> dict[str, object]:
    """What that Python says after importing the package and its widgets."""
    seen: dict[str, object] = json.loads(_run([str(python), "-I", "-c", PROBE]))
    return seen


def test_every_source_file_and_asset_is_in_the_wheel(project: Path, wheel: Path) -> None:
    expected = _shipped(project / "tfos_magic", "tfos_magic") | _shipped(project / "widgets", "tfos_magic/widgets")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_panels_script_and_style_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        kinds = {Path(name).suffix for name in archive.namelist() if name.startswith("tfos_magic/widgets/static/")}
    assert kinds >= {".js", ".css"}


def test_package_and_widgets_import_where_nothing_else_is_installed(bare_python: Path) -> None:
    found = _run([str(bare_python), "-I", "-c", "import tfos_magic.widgets; print(tfos_magic.widgets.__file__)"])
    assert Path(found.strip()).is_relative_to(bare_python.parent.parent)


@pytest.mark.soak
def test_every_module_of_the_wheel_imports(python: Path) -> None:
    imported = _run([str(python), "-I", "-c", IMPORT_ALL]).split()
    assert {"tfos_magic.worker", "tfos_magic.widgets"} <= set(imported)


def test_package_and_widgets_come_from_the_wheel(installed: dict[str, object]) -> None:
    assert str(installed["package"]).endswith("site-packages/tfos_magic/__init__.py")
    assert str(installed["widgets"]).endswith("site-packages/tfos_magic/widgets/__init__.py")


def test_the_installed_version_is_the_sources(installed: dict[str, object], project: Path) -> None:
    assert f'__version__ = "{installed["version"]}"' in (project / "tfos_magic" / "__init__.py").read_text()


def test_the_wheel_takes_no_top_level_name_but_its_own(installed: dict[str, object], wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name}
    assert top == {"tfos_magic"}
    assert installed["top level widgets"] is False


def _shipped(folder: Path, target: str) -> set[str]:
    """The paths in a wheel of the Python files and assets under ``folder``."""
    files = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {f"{target}/{path.relative_to(folder)}" for path in files if path.suffix in SHIPPED or path.name in SHIPPED}


def _environment(folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel alone in it and give its Python; ours has the pip that fills it."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    options = ["--disable-pip-version-check", "--python", str(python)]
    _run([sys.executable, "-m", "pip", *options, "install", "--no-index", "--no-deps", str(wheel)])
    return python


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
