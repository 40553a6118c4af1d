"""Trainings that differ in their parameters, side by side."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tfos_magic.cluster.map_run import MapRun
from tfos_magic.cluster.runs.run import Run
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.errors import RunStopped, TFOSError
from tfos_magic.ml.fit_run import Training
from tfos_magic.ml.search_rows import show
from tfos_magic.ml.waiting import wait_for


class ParallelFits(Iterator[tuple[int, Any]]):
    """The models of trainings, each with its index and in their order, safe to be shared by threads.

    They begin with the first that is asked for. Those with the same options are one map of the cluster, which is let go
    when all are there, when one fails, and when nobody asks for them any more.
    """

    def __init__(self, trainings: Sequence[Callable[[], Training]], names: Sequence[str]) -> None:
        self._makers, self._names = trainings, names
        self._lock = threading.Lock()
        self._given = self._ended = 0
        self._failure: BaseException | None = None
        self._trainings: list[Training] = []
        self._runs: dict[int, Run] = {}
        self._exit = ExitStack()
        weakref.finalize(self, self._exit.close)

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            index = self._given
            if index == len(self._makers):
                raise StopIteration
            self._given += 1
            if not self._trainings:
                self._begin()
        try:
            run = self._runs[index]
            wait_for(run.wait, self._exit.close)
            return index, self._trainings[index].fitted(run)
        except BaseException as error:
            with self._lock:
                self._failure = first = self._failure or self._behind(error)
            self._exit.close()
            raise first from None
        finally:
            with self._lock:
                self._ended += 1
                if self._ended == len(self._makers):
                    self._exit.close()

    def _behind(self, error: BaseException) -> BaseException:
        """What stopped a run: the error of another one, where there is one."""
        failed = [run for run in self._runs.values() if run.phase is RunPhase.FAILED]
        if not isinstance(error, RunStopped) or not failed:
            return error
        try:
            wait_for(failed[0].wait, lambda: None)
        except TFOSError as reason:
            return reason
        return error

    def _begin(self) -> None:
        trainings = [make() for make in self._makers]
        cluster = self._exit.enter_context(trainings[0].cluster())
        left = list(range(len(trainings)))
        while left:
            first = trainings[left[0]]
            alike = [index for index in left if trainings[index].is_run_like(first)]
            left = [index for index in left if index not in alike]
            map_run = trainings[alike[0]].map(cluster, [trainings[index] for index in alike])
            self._exit.callback(_stop, map_run)
            self._runs.update(zip(alike, map_run.runs, strict=True))
        self._trainings = trainings
        for index, run in self._runs.items():  # by which tables tell them apart
            run.state.settings = {**run.state.settings, "params": self._names[index]}
        if trainings[0].estimator.value("verbose"):
            show(trainings[0].estimator.uid, {self._names[index]: self._runs[index] for index in sorted(self._runs)})


def _stop(map_run: MapRun) -> None:
    if not map_run.done:
        map_run.stop()
