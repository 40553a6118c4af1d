"""Independent runs of one piece of code, an item each, on whichever workers of a cluster are free."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.runs.attempt import StopAsked
from tfos_magic.cluster.runs.execution import Execution
from tfos_magic.cluster.runs.request import Observer, RunRequest
from tfos_magic.cluster.runs.run import STOP_SECONDS, Run
from tfos_magic.cluster.runs.run_queue import RunQueue
from tfos_magic.cluster.runs.state import RunPhase
from tfos_magic.cluster.subset import WorkerSubset
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.cluster.worker_group import WorkerGroup
from tfos_magic.errors import ItemError, RunInterrupted


class MapRun:
    """What ``cluster.map`` gives: ``runs``, one for each of ``items``, by which each can be watched.

    Iterating gives the results in the order of the items, each as soon as it is there, and raises
    :class:`~tfos_magic.errors.ItemError` for an item that failed; the others go on. The idea is that of
    ``concurrent.futures``. Each item gets trainers of its own: nothing that one sets or patches reaches another.
    """

    def __init__(
        self,
        cluster: WorkerGroup,
        items: Sequence[Any],
        requests: Sequence[RunRequest],
        workers_per_item: int,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.items, self.request, self.run_id = items, requests[0], uuid4().hex[:12]
        self._cluster, self._size = cluster, workers_per_item
        self._places: dict[str, WorkerSubset] = {}
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._order: list[int] = []
        watched = zip(requests, observers or [Observer()] * len(requests), strict=True)
        self.runs = [self._run_of(request, observer) for request, observer in watched]
        cluster.queue.join(self)

    def _run_of(self, request: RunRequest, observer: Observer) -> Run:
        return Run(Execution(request, self._size, self._connect), RunQueue(), observer, waits=True)

    def start(self) -> MapRun:
        """Go on in a thread of its own."""
        threading.Thread(target=self._work, name="tfos-map", daemon=True).start()
        return self

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Any]:
        """Results in order. When the last one is there, the workers are free again."""
        yield from (self.result(index) for index in range(len(self.runs)))
        self._over.wait(STOP_SECONDS)

    def __repr__(self) -> str:
        ended = sum(run.done for run in self.runs)
        under_way = sum(run.phase is not RunPhase.QUEUED and not run.done for run in self.runs)
        failed = sum(run.phase is RunPhase.FAILED for run in self.runs)
        counts = [f"{ended} of {len(self.runs)} items have ended", *([f"{failed} failed"] if failed else [])]
        return f"<{self.name}: {', '.join(counts)}, {under_way} under way>"

    @property
    def name(self) -> str:
        """What the map is called."""
        return self.request.name.rpartition(" ")[0]

    @property
    def done(self) -> bool:
        """Whether all items have ended, well or not, and the workers are free again."""
        return self._over.is_set()

    def result(self, index: int, timeout: float | None = None) -> Any:
        """What came of an item: what the function returned, or the outputs by name.

        Raises :class:`ItemError` from what ended its run, and TimeoutError after ``timeout`` seconds.
        """
        try:
            return self.runs[index].wait(timeout)
        except (Exception, RunInterrupted) as error:
            if not self.runs[index].done:
                raise
            raise ItemError(index, self.items[index], self.ranks(index), error) from error

    def ranks(self, index: int) -> Sequence[int]:
        """The workers that have an item or had it; none before it begins."""
        place = self._places.get(self.runs[index].run_id)
        return place.ranks if place else ()

    @property
    def busy(self) -> set[int]:
        """The workers that have an item now."""
        return {rank for index, run in enumerate(self.runs) if not run.done for rank in self.ranks(index)}

    def as_completed(self) -> Iterator[int]:
        """The indices of items as they end, well or not, those first that have ended already."""
        for count in range(len(self.runs)):
            with self._changed:
                while len(self._order) <= count:
                    self._changed.wait()
                index = self._order[count]
            yield index

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait for all items and give their results in order; raises what :meth:`result` raises for the first."""
        if not self.await_end(timeout):
            raise TimeoutError(f"{self!r} after {timeout:g} s; it is still running.")
        return list(self)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until :attr:`done`, and give whether that is so."""
        return self._over.wait(timeout)

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the items that are under way at their next step, and begin no other. Waits for that."""
        for _ in range(2):
            self._stopping.set()
            for run in self.runs:
                if not run.done:
                    run.ask_to_stop()
            if self._over.wait(timeout):
                return
        raise TimeoutError(f"{self.name} did not end within {2 * timeout:g} s: cluster.stop(force=True).")

    def mute(self) -> None:
        """Show nothing more: the process is about to end."""
        for run in self.runs:
            run.mute()

    def _work(self) -> None:
        queue = self._cluster.queue
        try:
            queue.await_turn(self, self._look_at_stop)
            for index in range(len(self.runs)):
                self._waiting.put(index)
            self._share_out()
        except StopAsked:
            pass
        finally:
            self._end_those_left()
            queue.leave(self)
            self._over.set()

    def _look_at_stop(self) -> None:
        if self._stopping.is_set():
            raise StopAsked

    def _share_out(self) -> None:
        """Let each group of workers take one item after another."""
        starts = range(0, self._cluster.size - self._size + 1, self._size)
        places = [WorkerSubset(self._cluster, range(start, start + self._size)) for start in starts]
        try:
            threads = [threading.Thread(target=self._serve, args=(place,), name="tfos-map-item") for place in places]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for place in places:
                place.close()

    def _serve(self, place: WorkerSubset) -> None:
        while not self._stopping.is_set():
            try:
                index = self._waiting.get_nowait()
            except Empty:
                return
            self._places[self.runs[index].run_id] = place
            place.membership.stale = True
            self._execute(index)

    def _end_those_left(self) -> None:
        for index, run in enumerate(self.runs):
            if not run.done:
                run.ask_to_stop()
                self._execute(index)

    def _execute(self, index: int) -> None:
        with suppress(BaseException):  # raised again by who asks for the result
            self.runs[index].execute()
        with self._changed:
            self._order.append(index)
            self._changed.notify_all()

    def _connect(self, run_id: str) -> TrainerGroup:
        if run_id not in self._places:
            raise StopAsked
        return self._places[run_id]
