"""Every exception a user can meet. Each message names the cause and says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tfos_magic.tracebacks import folded

ITEM_LENGTH = 80


def did_you_mean(name: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """``Did you mean 'x'?`` with the nearest of ``known``, whatever their case; ``otherwise`` where none is near."""
    folded = {other.casefold(): other for other in sorted(known, reverse=True)}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return f"Did you mean {folded[near[0]]!r}?" if near else otherwise


class TFOSError(Exception):
    """Base of all errors of this package but :class:`RunInterrupted`, which is a ``KeyboardInterrupt``."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in place of the local stack, which would say nothing about the cause."""
        return f"{type(self).__name__}: {self}".splitlines()


class UsageError(TFOSError):
    """A magic or a call was given something it cannot use: an option, a name, a syntax error in the cell."""


class CaptureError(TFOSError):
    """A name cannot be taken from the notebook, or cannot be sent to or from the workers.

    ``values`` holds what did come back, where the error is about names that did not.
    """

    def __init__(self, message: str, values: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.values = values or {}


class DataError(TFOSError):
    """A DataFrame cannot become tensors as asked: a column, its type, nulls, arrays too long, no rows at all."""

    @classmethod
    @contextmanager
    def of(cls, what: str) -> Iterator[None]:
        """Put ``what`` it is that cannot before the text of such an error."""
        try:
            yield
        except cls as error:
            raise cls(f"{what}: {error}") from None


class ClusterError(TFOSError):
    """The cluster is not in a state that allows what was asked, or it was lost."""


OUT_OF_MEMORY = "ran out of memory, and the system killed it (SIGKILL)"
"""What happened to a trainer that the system's out-of-memory killer ended."""


class WorkerLost(ClusterError):
    """A worker was lost during a run: its trainer, its agent or its executor ended, or did not answer any more.

    Attributes
    ----------
    rank: the rank that was lost.
    host: where it ran.
    how: what happened to it, such as ``was killed (SIGKILL)``.
    output: the last lines that it printed.
    """

    def __init__(self, rank: int, host: str, how: str, *, output: str = "", advice: str = "") -> None:
        super().__init__(
            f"Worker {rank} on {host} {how}.{advice}" + (f"\nIts last output:\n{output}" if output else "")
        )
        self.rank = rank
        self.host = host
        self.how = how
        self.output = output

    @property
    def short_of_memory(self) -> bool:
        """Whether the system is known to have killed it for lack of memory."""
        return self.how == OUT_OF_MEMORY

    def without_restarts(self, max_restarts: int, checkpoint_dir: str) -> WorkerLost:
        """The same loss, with what became of the run's ``max_restarts`` and what to do now."""
        said = "It was not restarted because --max-restarts is 0"
        if max_restarts:
            times = f"{max_restarts} time{'s' * (max_restarts > 1)}"
            said = f"It had been restarted {times}, which is all that --max-restarts allows"
        again = f"--resume goes on from the last checkpoint in {checkpoint_dir}" if checkpoint_dir else "run it again"
        advice = (
            f" {said}: {again}, with a smaller batch or model if memory was short. What runs next gets new workers."
        )
        return WorkerLost(self.rank, self.host, self.how, output=self.output, advice=advice)


class StartTimeout(ClusterError):
    """The cluster did not come up in time; the message says what was missing."""


class ExecutorError(ClusterError):
    """An executor lacks what a worker needs, such as TensorFlow; the message names the host."""


class FeedError(TFOSError):
    """Rows could not be brought from Spark to the workers, through no fault of the data."""


class SpoolFull(FeedError):
    """A feed is larger than the disk that workers may take for feeds; such a DataFrame is streamed instead."""


class ProtocolError(TFOSError):
    """A message that does not follow the wire format; such a message is dropped, never acted on.

    ``kind`` is what it says of all such messages, without names and numbers.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or message


class MessageTooLarge(ProtocolError):
    """A message that nobody would take, for all but its payload is longer than ``most`` bytes; it is not sent."""

    def __init__(self, name: str, size: int, most: int) -> None:
        super().__init__(
            f"a message ({name}) of {size / 2**20:.0f} MB is too large: all but the values of names may have "
            f"{most >> 20} MB. Show or send less at once, or write it to a file."
        )


class TrainingError(TFOSError):
    """The cell cannot be distributed as written; the message says why and what to write instead."""


class RunStopped(TFOSError):
    """The run was stopped at a step boundary because the user asked for it."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a command of ``%tfos``."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints: a line, for the stack would show only how this package waits."""
        return [f"{type(self).__name__}: {self}"]


class RunInterrupted(Interrupted):
    """The user interrupted a run, and it has ended; to other code it is the ``KeyboardInterrupt`` that it was.

    ``values`` holds the names that came back all the same; ``brought`` says so, and ``how`` how it left the cluster.
    """

    def __init__(self, values: dict[str, object], brought: str, how: str = "; its workers are free again.") -> None:
        super().__init__(f"the run was stopped{how}" + (brought and f" {brought}"))
        self.values = values


class ItemError(TFOSError):
    """An item of ``cluster.map`` has failed: ``index``, ``item``, ``ranks`` that had it, and the ``cause``."""

    def __init__(self, index: int, item: object, ranks: Sequence[int], cause: BaseException) -> None:
        shown = repr(item)
        shown = shown if len(shown) <= ITEM_LENGTH else f"{shown[:ITEM_LENGTH]}…"
        where = f", on worker {', '.join(map(str, ranks))}" if ranks else ""
        # An item's workers count from 0, and are called here by their ranks in the cluster.
        said = cause.told(f"{cause.kind}: {cause.args[0]}") if isinstance(cause, WorkerError) else str(cause)
        super().__init__(f"items[{index}] = {shown}{where}: {said}")
        self.index, self.item, self.ranks, self.cause = index, item, tuple(ranks), cause


class TrialError(TFOSError):
    """A trial of a sweep has failed: its ``number`` in the study, its ``params``, and why."""

    def __init__(self, number: int, params: Mapping[str, object], why: str) -> None:
        chosen = ", ".join(f"{name} {value}" for name, value in params.items())
        super().__init__(f"Trial {number}{f' ({chosen})' if chosen else ''}: {why}")
        self.number, self.params = number, dict(params)


class WorkerError(TFOSError):
    """An exception raised by the cell on a worker, brought back to the notebook.

    Attributes
    ----------
    rank: the rank it happened on (the lowest one, where several failed alike).
    host: where that worker runs.
    kind: name of the remote exception's class.
    remote_traceback: the worker's traceback as text, without frames of this package; those of libraries are folded
        where it is shown.
    cell_lines: the lines of the cell around the failing one, the failing one marked.
    output: the last lines that the worker printed.
    values: the names asked back that came all the same, as they were when rank 0 ended; ``brought`` says so.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        host: str = "",
        kind: str = "Exception",
        remote_traceback: str = "",
        cell_lines: str = "",
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.kind = kind
        self.remote_traceback = remote_traceback
        self.cell_lines = cell_lines
        self.output = output
        self.values: dict[str, object] = {}
        self.brought = ""

    def __str__(self) -> str:
        where = f"worker {self.rank}" + (f" on {self.host}" if self.host else "")
        return self.told(f"{self.kind} on {where}: {self.args[0]}")

    def told(self, headline: str) -> str:
        """All that is known of it below a ``headline``."""
        parts = [headline]
        for title, text in (
            ("In the cell", self.cell_lines),
            ("In the notebook", self.brought),
            ("Remote traceback", folded(self.remote_traceback)),
            ("Last output of this worker", self.output),
        ):
            if text:
                parts.append(f"{title}:\n{text.rstrip()}")
        return "\n\n".join(parts)
