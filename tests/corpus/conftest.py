"""Trainer groups that all programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.conftest import Groups


@pytest.fixture(scope="package")
def groups() -> Iterator[Groups]:
    made = Groups()
    yield made
    made.close()
