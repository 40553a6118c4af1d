"""Kernels for tests: one for a module, or as many as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.kernel_driver import SESSION, Kernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel for the tests of one module, magics loaded and a session made."""
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    try:
        assert not made.run("%load_ext tfos_magic").error
        assert not made.run(SESSION).error
        yield made
    finally:
        made.end()


@pytest.fixture
def new_kernel(tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """A factory of kernels that the test itself ends."""
    made: list[Kernel] = []

    def make(**environment: str) -> Kernel:
        made.append(Kernel(tmp_path, **environment))
        return made[-1]

    yield make
    for each in made:
        each.end()
