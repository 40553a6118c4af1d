"""What a cell asks of the notebook while it runs, and waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from tfos_magic.errors import ClusterError, UsageError
from tfos_magic.transport.messages.events import Notice
from tfos_magic.transport.messages.message import Message

QUIET_SECONDS, PATIENCE_SECONDS = 3.0, 120.0
"""How long a cell waits for an answer before it says so, and from there before it gives up."""


@dataclass(frozen=True)
class Question(Message):
    """``about`` says ``what`` the cell of a rank asks: a ``suggestion`` asks for a value, and tells what it may be;
    ``outputs`` asks whether the names asked back are wanted, and tells those of them that are numbers."""

    run_id: str
    rank: int
    number: int
    what: str
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer(Message):
    """The answer to the :class:`Question` of that number: ``told`` holds its ``value``, or an ``error``."""

    run_id: str
    number: int
    told: dict[str, Any] = field(default_factory=dict)


class Questions:
    """The questions of a run on one rank, one after another; any thread may ask."""

    def __init__(self, run_id: str, rank: int, send: Callable[[Message], None]) -> None:
        self._run_id, self._rank, self._send = run_id, rank, send
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._turn, self._asked = threading.Lock(), 0

    def take(self, answer: Answer) -> None:
        """Hear an answer; from the thread that reads the link."""
        if answer.run_id == self._run_id:
            self._answers.put(answer)

    def ask(self, what: str, about: Mapping[str, Any]) -> Any:
        """Ask, and wait for the answer. Raises :class:`UsageError` for one that is an error, :class:`ClusterError`
        where none comes."""
        with self._turn:
            self._asked += 1
            self._send(Question(self._run_id, self._rank, self._asked, what, dict(about)))
            told = self._answer(what).told
        if "error" in told:
            raise UsageError(told["error"])
        return told["value"]

    def _answer(self, what: str) -> Answer:
        """The answer to the last question; those to questions that an interrupt has ended are passed over."""
        for patience in (QUIET_SECONDS, PATIENCE_SECONDS):
            with suppress(Empty):
                while (answer := self._answers.get(timeout=patience)).number != self._asked:
                    pass
                return answer
            self._send(Notice(self._run_id, self._rank, f"A worker waits for the notebook to answer ({what})."))
        raise ClusterError(f"the notebook gave no answer ({what}) within {PATIENCE_SECONDS:.0f} s.")
