"""Which runs a notebook knows, and how they are found again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfos_magic.cluster.runs.known_runs import KnownRuns, RunNames
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.errors import UsageError


def run(name: str, alone: bool = False) -> Any:
    made = SimpleNamespace(
        name=name, run_id=name, state=f"state of {name}", done=False, request=SimpleNamespace(alone=alone)
    )
    made.runs = [made]
    return made


def test_of_a_map_there_are_its_runs() -> None:
    queue: RunQueue[Any] = RunQueue()
    known, heard = KnownRuns(queue), []
    known.on_new(heard.append)
    runs = [run("fit 1"), run("fit 2")]
    queue.join(SimpleNamespace(request=runs[0].request, runs=runs))
    assert heard == known.runs == runs


def test_runs_are_found_by_name_and_number_and_others_refused() -> None:
    queue: RunQueue[Any] = RunQueue()
    known, heard = KnownRuns(queue), []
    known.on_new(heard.append)
    runs = [run("run 1"), run("looking", alone=True), run("run 2"), run("run 1")]
    for made in runs:
        queue.join(made)
    assert heard == known.runs == [runs[0], runs[2], runs[3]]
    assert known.find("run 2") is runs[2]
    with pytest.raises(UsageError, match=r"2 runs are called 'run 1': choose one by its number in %tfos runs, 1, 3\."):
        known.find("run 1")
    assert known.find("1") is runs[0]
    with pytest.raises(UsageError, match=r"no run 'run2'\. Did you mean 'run 2'\?"):
        known.find("run2")
    with pytest.raises(UsageError, match=r"no run '9'\. %tfos runs lists"):
        known.find("9")


def test_a_name_is_given_once() -> None:
    names = RunNames()
    assert [names.give() for _ in range(2)] == ["run 1", "run 2"]
    assert [names.give(name) for name in ("fit", "fit 2", "fit", "fit", "run 1")] == [
        "fit",
        "fit 2",
        "fit 3",
        "fit 4",
        "run 1 2",
    ]
