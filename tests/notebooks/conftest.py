"""The tutorials, each run once for all tests of its module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notebooks.running import Executed, execute

RunNotebook = Callable[[str], Executed]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module's first test waits for the whole notebook."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="module")
def run_notebook(project: Path, artefacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunNotebook]:
    """Gives ``run(name)``; fails the module when a process that a notebook started outlives it."""
    executed: list[Executed] = []

    def run(name: str) -> Executed:
        folder = tmp_path_factory.mktemp(name)
        executed.append(execute(project / "notebooks" / f"{name}.ipynb", folder, artefacts))
        return executed[-1]

    yield run
    assert [command for one in executed for command in one.left] == []
