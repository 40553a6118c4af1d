"""Kernels for tests: one for a module, or as many as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.kernel_driver import END_OTHERS, SESSION, Kernel


@pytest.fixture(scope="package")
def one_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """With its JVM and its cluster, what costs most of a module's time."""
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    try:
        assert not made.run("%load_ext tfos_magic").error
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def kernel(one_kernel: Kernel) -> Kernel:
    """A kernel whose magics are loaded and that has a session, and no other name; a cluster may be there already."""
    assert not one_kernel.run("%reset -f").error
    assert not one_kernel.run(END_OTHERS).error
    assert not one_kernel.run(SESSION).error
    return one_kernel


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
