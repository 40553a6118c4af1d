"""When a start gives up the direct way to the kernel."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster.via_spark.detour import Detour, toward_kernel
from tfos_magic.errors import StartTimeout
from tfos_magic.transport.log_once import LogOnce

LOG = LogOnce(logging.getLogger("tfos_magic.test"))


def detour(monkeypatch: pytest.MonkeyPatch, answers: list[Any], comes: Callable[[float], bool]) -> Detour:
    """A start whose tries give ``answers``, or raise them, and whose first agent ``comes`` or not."""
    session: Any = SimpleNamespace(sparkContext=None)
    made = Detour(session, SimpleNamespace(await_first=comes), "")  # type: ignore[arg-type]

    def ask(what: str, work: Callable[[], str], seconds: float) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(made, "_ask", ask)
    return made


def test_a_try_that_comes_too_late_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = detour(monkeypatch, [StartTimeout("no slot"), StartTimeout("no slot"), "timed out"], lambda seconds: False)
    assert made.take("tcp://10.0.0.1:1", time.monotonic() + 60, LOG)
    assert made.taken


def test_executors_that_reach_the_kernel_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = detour(monkeypatch, [""], lambda seconds: False)
    assert not made.take("tcp://10.0.0.1:1", time.monotonic() + 60, LOG)


def test_a_first_agent_ends_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, True])
    made = detour(monkeypatch, [StartTimeout("no slot")], lambda seconds: next(looks))
    assert not made.take("tcp://10.0.0.1:1", time.monotonic() + 60, LOG)


def test_tries_end_with_the_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made = detour(monkeypatch, [], lambda seconds: False)
    assert not made.take("tcp://10.0.0.1:1", time.monotonic() - 1, LOG)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", "10.0.0.1"),
        ("127.0.0.1", "10.0.0.1"),
        ("localhost", "10.0.0.1"),
        ("::1", "10.0.0.1"),
        ("10.0.9.9", "10.0.9.9"),
        ("kernel.example", "kernel.example"),
    ],
)
def test_a_relay_listens_where_other_hosts_reach_it(wanted: str, found: str) -> None:
    assert toward_kernel(wanted, "10.0.0.1") == found
