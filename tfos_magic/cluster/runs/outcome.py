"""How the ranks of a run ended, and what that means for the notebook and for the trainers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tfos_magic.cluster.runs.state import RunState
from tfos_magic.cluster.runs.worker_state import WorkerState
from tfos_magic.cluster.trainer_group import TrainerGroup
from tfos_magic.cluster.workers import describe_exit
from tfos_magic.errors import OUT_OF_MEMORY, WorkerError, WorkerLost
from tfos_magic.transport.messages import RunFinished, TrainerExited

OUTPUT_LINES = 10
_MEMORY = ("MemoryError", "ResourceExhaustedError")
_LESS_MEMORY = "Use a smaller model or batch, or give the executors more."
_COLLATERAL = ("ClusterError", "UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")

INTERRUPT_WAITS = (
    "The interrupt waits for what the workers are doing to come to its end. Another one ends the workers at once; the "
    "names of -o are lost then."
)


class Outcome:
    """Collects one end for each of ``ranks``: a finished cell or a lost trainer.

    An ``elastic`` run goes on without a worker; where ranks are ``alone`` none depends on another. Ranks from ``size``
    on are parameter servers, which end no cell. Ranks that are ``leaving`` stop, for the run goes on elsewhere.
    """

    def __init__(
        self, size: int, *, ranks: Collection[int] | None = None, elastic: bool = False, alone: bool = False
    ) -> None:
        self._size = size
        self._ranks = frozenset(range(size) if ranks is None else ranks)
        self._elastic, self._alone = elastic, alone
        self.leaving = False
        self._finished: dict[int, RunFinished] = {}
        self._lost: dict[int, TrainerExited] = {}

    def finished(self, message: RunFinished) -> None:
        self._finished[message.rank] = message

    def lost(self, message: TrainerExited) -> None:
        self._lost[message.rank] = message

    @property
    def complete(self) -> bool:
        """Every rank has ended, one way or another."""
        return not self.open

    @property
    def open(self) -> frozenset[int]:
        """The ranks that have not ended."""
        return self._ranks - self._finished.keys() - self._lost.keys()

    @property
    def broken(self) -> bool:
        """A rank has ended in a way that the others may wait for in vain."""
        return not self._alone and self._missing_or_failed

    @property
    def failed(self) -> bool:
        """A rank has ended by an error, and the others may wait for it in vain."""
        return not self._alone and bool(self._errors)

    @property
    def refused(self) -> bool:
        """A rank has ended as all are about to: what cannot be distributed is refused on every one of them."""
        return not self._missed and any(end.error.get("kind") == "TrainingError" for end in self._errors)

    @property
    def _missing_or_failed(self) -> bool:
        well = ("ok", "stopped") if self.leaving else ("ok",)
        return bool(self._missed) or any(end.status not in well for end in self._finished.values() if self._counts(end))

    @property
    def left(self) -> bool:
        """All ranks have stopped, for the run goes on elsewhere."""
        return self.leaving and self.complete and any(end.status == "stopped" for end in self._finished.values())

    def _counts(self, end: RunFinished) -> bool:
        """Whether the others depend on how a rank ended: not where it lost touch with an elastic run."""
        return not self._elastic or end.rank == 0 or end.error.get("kind") not in _COLLATERAL

    @property
    def _missed(self) -> dict[int, TrainerExited]:
        """Lost trainers that the others cannot do without: where the run is elastic, rank 0 and the servers."""
        if not self._elastic:
            return self._lost
        return {rank: exited for rank, exited in self._lost.items() if rank == 0 or rank >= self._size}

    @property
    def reusable(self) -> bool:
        """Every trainer has ended the cell by itself, and could run another."""
        return self._finished.keys() == self._ranks and all(end.clean for end in self._finished.values())

    @property
    def unexplained(self) -> bool:
        """Ranks failed because of others, and nothing is known that befell these."""
        return bool(self._errors) and not _causes(self._errors) and not self._missed

    @property
    def _errors(self) -> list[RunFinished]:
        return [end for end in self._finished.values() if end.status == "error" and self._counts(end)]

    @property
    def ends(self) -> dict[int, RunFinished]:
        """How the ranks that ended by themselves did, by rank."""
        return dict(sorted(self._finished.items()))

    def _stuck_error(self, workers: Sequence[WorkerState]) -> WorkerLost:
        rank = min(self._ranks - self._finished.keys())
        return WorkerLost(rank, workers[rank].host, "did not end the cell when the others did")

    def raise_error(self, workers: Sequence[WorkerState]) -> None:
        """Raise what ended the run, unless all ranks ended well: the cause, not what the others suffered from it."""
        errors = self._errors
        if causes := _causes(errors):
            raise _worker_error(min(causes, key=lambda end: end.rank), workers)
        if self._missed:
            raise _lost_error(self._missed[min(self._missed)], workers)
        if errors and not self.complete:
            raise self._stuck_error(workers)
        if errors:
            raise _worker_error(min(errors, key=lambda end: end.rank), workers)
        if not self.complete:
            raise self._stuck_error(workers)


def _causes(errors: Sequence[RunFinished]) -> list[RunFinished]:
    """The errors that are no consequence of others."""
    return [end for end in errors if end.error.get("kind") not in _COLLATERAL]


def _worker_error(end: RunFinished, workers: Sequence[WorkerState]) -> WorkerError:
    worker = workers[end.rank]
    message = str(end.error.get("message", ""))
    if end.error.get("kind") in _MEMORY:
        message += f"\nMemory is short on this worker. {_LESS_MEMORY}"
    return WorkerError(
        message,
        rank=end.rank,
        host=worker.host,
        kind=str(end.error.get("kind", "Exception")),
        remote_traceback=str(end.error.get("traceback", "")),
        cell_lines=str(end.error.get("cell_lines", "")),
        output="\n".join(list(worker.log)[-OUTPUT_LINES:]),
    )


def _lost_error(exit_: TrainerExited, workers: Sequence[WorkerState]) -> WorkerLost:
    tail = "\n".join(exit_.output.splitlines()[-OUTPUT_LINES:])
    how = describe_exit(exit_)
    if exit_.rank >= len(workers):
        return WorkerLost(exit_.rank, "its host", f"{how}; it was a parameter server and held weights", output=tail)
    advice = f" {_LESS_MEMORY}" if how == OUT_OF_MEMORY else ""
    return WorkerLost(exit_.rank, workers[exit_.rank].host, how, output=tail, advice=advice)


def restart_notice(loss: WorkerLost, state: RunState, start: str, most: int) -> str:
    """That a run was restarted, why, and where it begins: at ``start``, or at the beginning where that is empty."""
    over = state.trained >= state.epochs  # the cell was beyond its fit
    where = f" {'after' if over else 'in'} epoch {state.epoch + 1}" if state.epochs else ""
    counted = f"{state.restarts} of {most} restarts"
    return f"Worker {loss.rank} {loss.how}{where}: restarted from {start or 'the beginning'} ({counted})."


def how_left(cluster: TrainerGroup | None) -> str:
    """How a run that was stopped has left its cluster; None: it had none yet."""
    if cluster is None:
        return " before it began."
    membership = cluster.membership
    if membership.phase.ended:
        return f", and its cluster has ended: {membership.reason}" if membership.reason else "."
    if said := membership.unanswered():
        return f". Its cluster waits for {said}."
    return "; its workers are free again."
