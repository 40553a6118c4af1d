"""A program run plainly and on several ranks, and whether what came of it is what it says that it must give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.corpus.program import EXPECTATION, Program
from tests.training.conftest import Groups
from tests.training.harness import Outcome
from tfos_magic.transport.messages.events import Notice

TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
_CELL = "from tests.corpus.playing import played\nresults = played({path!r}, {floatx!r}, {noiseless!r})\n"


@dataclass(frozen=True)
class Verdict:
    """What a program gave. ``wrong`` says what is not as it must be; empty where all is.

    ``difference`` is the largest between a number of any rank and that of the plain process, relative to it where that
    is above 1; None where nothing was to be compared.
    """

    outcome: str
    difference: float | None = None
    wrong: str = ""


def judge(program: Program, groups: Groups, size: int, floatx: str) -> Verdict:
    """Run ``program`` plainly and on ``size`` ranks in ``floatx``, and compare."""
    cell = _CELL.format(path=str(program.path), floatx=floatx, noiseless=program.expect == EXPECTATION)
    alone = groups[0].run(cell, "results")[0]
    if not alone.values.get("results"):
        return Verdict("no program", wrong=f"it leaves nothing that could be compared, by itself: {alone.error}")
    plain = alone.values["results"]
    notices: list[str] = []

    def listen(rank: int, message: Any) -> None:
        if isinstance(message, Notice):
            notices.append(message.text)

    try:
        outcomes = groups[size].run(cell, "results", on_message=listen)
    except TimeoutError as error:
        groups[size].broken = True
        return Verdict("no end", wrong=f"{error}")
    if failed := next((outcome for outcome in outcomes if outcome.kind), None):
        return _of_failure(program, outcomes, failed)
    largest = max(difference(outcome.values["results"], plain) for outcome in outcomes)
    wrong = _wrong(program, largest, TOLERANCES[floatx], notices)
    return Verdict("equal" if largest <= TOLERANCES[floatx] else "different", largest, wrong)


def _of_failure(program: Program, outcomes: list[Outcome], failed: Outcome) -> Verdict:
    if program.refusal and all(o.kind == "TrainingError" and program.refusal in o.error for o in outcomes):
        return Verdict("refused")
    return Verdict(failed.kind, wrong=f"a rank ended with {failed.kind}: {failed.error}")


def _wrong(program: Program, largest: float, tolerance: float, notices: list[str]) -> str:
    if program.refusal:
        return f"it was trained, and should have been refused with {program.refusal!r}"
    if not largest <= tolerance:
        return f"it differs from one process by {largest:.1e}"
    unexpected = [text for text in notices if not program.notice or program.notice not in text]
    if unexpected and program.expect != EXPECTATION:
        return f"it was told of without need: {unexpected}"
    if program.notice and not any(program.notice in text for text in notices):
        return f"nobody was told that {program.notice!r}"
    return ""


def difference(mine: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> float:
    """The largest of all that ``plain`` has; ``mine`` may have more: an optimizer that is built already."""
    if not plain.keys() <= mine.keys() or any(mine[name].shape != plain[name].shape for name in plain):
        return np.inf
    return max((_apart(mine[name].astype("float64"), plain[name].astype("float64")) for name in plain), default=0.0)


def _apart(mine: np.ndarray, plain: np.ndarray) -> float:
    """The largest difference, relative where ``plain`` is above 1; infinite where either is not a number."""
    if not plain.size:
        return 0.0
    apart = float(np.max(np.abs(mine - plain) / np.maximum(np.abs(plain), 1.0)))
    return apart if np.isfinite(apart) else np.inf
