"""What a trainer takes of its host."""

from __future__ import annotations

import os

import pytest

from tfos_magic.worker.host import threads_of_operations


@pytest.mark.parametrize(("cores", "local_size", "threads"), [(8, 2, 4), (8, 1, 8), (2, 3, 1), (None, 2, 1)])
def test_trainers_of_a_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, local_size: int, threads: int
) -> None:
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert threads_of_operations(local_size) == threads


@pytest.mark.parametrize(("said", "threads"), [("1", 1), ("3", 3), ("0", 4), ("many", 4)])
def test_tensorflows_own_variable_has_the_say(monkeypatch: pytest.MonkeyPatch, said: str, threads: int) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", said)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads_of_operations(2) == threads
