"""The trainer: a process, forked for an agent, in which TensorFlow lives and cells run, one after another.

Its main thread loads TensorFlow, forms the cluster of its generation once, then runs cells. A second thread reads
commands, so that a stop reaches a run that is under way.
"""

from __future__ import annotations

import io
import os
import platform
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from tfos_magic.disk import mounts, trust
from tfos_magic.lean import gc_paused
from tfos_magic.processes.child_process import Link, die_with_parent
from tfos_magic.transport.messages import (
    Alive,
    Answer,
    CheckpointPart,
    Display,
    Message,
    Notice,
    OutputTaken,
    Questions,
    RunCell,
    RunFinished,
    RunStarted,
    StartTrainer,
    StopRun,
    TrainerReady,
)
from tfos_magic.values import keras_state, process_state
from tfos_magic.worker.display import FIGURES_BACKEND
from tfos_magic.worker.host import load, threads_of_operations
from tfos_magic.worker.interrupts import Interrupts

if TYPE_CHECKING:
    from tfos_magic.disk.folder_view import SnapshotView

LIFE_SECONDS = 1.0
QUERY_PATIENCE = 7 * 24 * 3600.0  # for a step whose rows come from a query, or a program's feed


class Trainer:
    """One process's life: start, cells, end with the link."""

    def __init__(self, link: Link, may_mount: bool) -> None:
        self._link, self._may_mount = link, may_mount
        self._cells: SimpleQueue[RunCell | None] = SimpleQueue()
        self._parts: list[CheckpointPart] = []
        self._servers: Any = None
        self._stop: Any = None
        self._questions = Questions("", 0, self._send)
        self._stopped_runs: set[str] = set()
        self._running, self._taken = "", SimpleQueue[None]()
        self._interrupts, self._left = Interrupts(), dict[str, Any]()
        self._ending, self._ended, self._abandoned = threading.Lock(), False, False

    def serve(self) -> None:
        """Run until the agent closes the link."""
        threading.Thread(target=self._show_life, name="tfos-alive", daemon=True).start()
        start = self._link.receive()
        if not isinstance(start, StartTrainer):
            raise SystemExit("the first message to a trainer must be StartTrainer")
        if not self._prepare(start):
            return
        threading.Thread(target=self._read, name="tfos-commands", daemon=True).start()
        while (cell := self._cells.get()) is not None:
            self._run(cell)

    def _show_life(self) -> None:
        """Tell the agent each second that this process is neither stopped nor stuck where no thread can run."""
        while True:
            self._send(Alive())
            time.sleep(LIFE_SECONDS)

    def _prepare(self, start: StartTrainer) -> bool:
        """Load TensorFlow, form the cluster and say so; False when that failed, which is also said."""
        sys.path.extend(p for p in start.sys_path if p not in sys.path and trust.is_trusted(p))
        self._rank, self._local_rank = start.rank, start.local_rank
        try:
            with gc_paused():
                load()
                import keras
                import tensorflow as tf

                from tfos_magic.disk.disk import Disk
                from tfos_magic.training.keras_seam.as_written.downloads import shared_downloads

            spared = frozenset(sys.modules)
            self._disk = Disk(start.rank, start.local_size, self._may_mount, spared, shared_downloads)
            self._connect(start)
            gpus = tf.config.list_physical_devices("GPU")
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            self._link.send(TrainerReady(start.generation, start.rank, os.getpid(), error=told))
            return False
        versions = {"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__}
        device = f"gpu {os.environ.get('CUDA_VISIBLE_DEVICES', '')}" if gpus else "cpu"
        self._link.send(TrainerReady(start.generation, start.rank, os.getpid(), versions, device))
        return True

    def _connect(self, start: StartTrainer) -> None:
        """Join the other workers and find the parameter servers, or be one of these."""
        from tfos_magic.training.collectives import Collectives, form_cluster
        from tfos_magic.training.parameter_server.client import ServerGroup
        from tfos_magic.training.parameter_server.server import ParameterServer
        from tfos_magic.transport.tls import TlsPeers

        if start.role == "ps":
            self._server = ParameterServer(start.servers[start.rank - len(start.addresses)], start.secret)
            return
        threads = threads_of_operations(start.local_size)
        if start.late:
            self._collectives = Collectives(start.rank, len(start.addresses))
        else:
            form = partial(form_cluster, timeout=start.timeout, threads=threads, secret=start.secret)
            tls = TlsPeers(start.identity, start.names) if start.identity else None
            self._collectives = form(start.rank, start.addresses, nccl=start.nccl, tls=tls)
        self._step_timeout = self._collectives.timeout
        if start.servers:
            self._servers = ServerGroup(
                start.rank, len(start.addresses), start.servers, start.secret, start_seconds=start.timeout
            )

    def _read(self) -> None:
        """Take commands off the link until it closes; then the process has no reason to live."""
        for message in self._link.messages():
            if isinstance(message, RunCell):
                self._cells.put(message)
            elif isinstance(message, CheckpointPart):
                self._parts.append(message)
            elif isinstance(message, OutputTaken) and message.run_id == self._running:
                self._taken.put(None)
            elif isinstance(message, Answer):
                self._questions.take(message)
            elif isinstance(message, StopRun) and message.leave:
                if self._stop is not None and self._running == message.run_id:
                    self._stop.leaving = message.leave
            elif isinstance(message, StopRun):
                self._stopped_runs.add(message.run_id)
                if self._stop is not None and self._running == message.run_id:
                    self._halt(message.abandon)
        os._exit(0)

    def _halt(self, abandon: bool = False) -> None:
        """End the cell that runs: at the next step where it trains, else as Ctrl-C ends a program. With ``abandon`` it
        ends where it waits for another worker, too, unless it has ended meanwhile."""
        self._stop.request()
        self._interrupts.send()
        with self._ending:
            if abandon and not (self._abandoned or self._ended):
                self._abandoned = True
                self._collectives.abort("another worker ended the cell with an error")

    def _run(self, cell: RunCell) -> None:
        from tfos_magic.training.distributed_cell import StopSignal

        self._interrupts.forget()
        self._stop, self._running, self._taken = StopSignal(), cell.run_id, SimpleQueue()
        self._left, self._trained, self._ended = {}, list[str](), False
        self._questions = Questions(cell.run_id, self._rank, self._send)
        if cell.run_id in self._stopped_runs:
            self._halt()
        try:
            self._send(self._outcome(cell))
            self._disk.tidy()
        finally:
            self._stop, self._running = None, ""
            self._stopped_runs.discard(cell.run_id)

    def _outcome(self, cell: RunCell) -> RunFinished:
        """Execute the cell and say how it ended; whatever the user's code raises is an answer, not a crash."""
        from tfos_magic.errors import ClusterError
        from tfos_magic.worker.cell import Given, describe_error, fill, main_module, of_vain
        from tfos_magic.worker.display import showing
        from tfos_magic.worker.outputs import bring_back

        with main_module(cell) as namespace, ExitStack() as opened:
            given = Given({})
            left = opened.enter_context(process_state.as_in_notebook(cell.notebook, files=self._rank == 0))
            try:
                view = opened.enter_context(self._disk.opened(cell, self._note))
                with self._disk.explaining():
                    unbuilt = fill(namespace, cell, self._note, self._questions)
                    given = Given(namespace)
                    self._send(RunStarted(cell.run_id, self._rank))
                    with showing(lambda data, metadata: self._show(cell, data, metadata)):
                        self._execute(cell, namespace, view, unbuilt)
                end = RunFinished(cell.run_id, self._rank, "ok")
            except BaseException as error:
                how = "stopped" if self._interrupts.asked_for(error) else "error"
                # After a broken collective TensorFlow's cluster cannot be used again in this process.
                clean = not isinstance(error, ClusterError)
                end = RunFinished(cell.run_id, self._rank, how, describe_error(error, cell), clean=clean)
                if isinstance(error, SystemExit) and not error.code:  # a script that is through
                    end = RunFinished(cell.run_id, self._rank, "ok")
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            with self._ending:
                self._ended = True
            end = replace(end, left=left(self._left, self._disk.moved()), clean=end.clean and not self._abandoned)
            leaves = end.status == "stopped" and bool(self._stop.leaving)
            if cell.outputs and (end.clean or self._abandoned) and self._speaks(cell) and not leaves:
                new, questions = given.set_anew(namespace), self._questions
                end = bring_back(end, cell, namespace, new, self._send, self._taken, questions)
            if self._speaks(cell) and not leaves and (vain := of_vain(self._trained, cell, end)):
                self._note(vain)
            return end

    def _execute(self, cell: RunCell, namespace: dict[str, Any], view: SnapshotView | None, unbuilt: Any) -> None:
        from tfos_magic.checkpoints.checkpoint import assemble
        from tfos_magic.training import ranks
        from tfos_magic.training.context import CheckpointPlan
        from tfos_magic.training.distributed_cell import RunContext, distributed
        from tfos_magic.worker.cell import execute

        parts, self._parts = self._parts, []  # sent before the cell, so that all of them are here
        context = RunContext(
            run_id=cell.run_id,
            collectives=self._collectives,
            emit=self._send,
            stop=self._stop,
            strategy=cell.strategy,
            seed=cell.seed,
            options=cell.options,
            servers=self._servers,
            checkpoints=CheckpointPlan(enabled=True, **cell.checkpoints) if cell.checkpoints else CheckpointPlan(),
            resume=assemble(part for part in parts if part.run_id == cell.run_id),
            local_rank=self._local_rank,
            event_files=cell.event_files,
            feeds={name: use.mark for name, use in cell.feeds.items()},
            random=cell.random,
            rows=cell.rows,
            **dict[str, Any]({} if view is None else {"owns": view.owns, "refresh": view.refresh}),
        )
        patient = cell.rows or any(use.stream and use.stream.live for use in cell.feeds.values())
        self._collectives.timeout = QUERY_PATIENCE if patient else self._step_timeout
        keras_state.go_on(keras_state.names(), cell.notebook.names_given)
        if cell.apart:
            with ranks.current(context), self._interrupts.allowed():
                execute(cell, namespace, unbuilt)
            return
        with self._interrupts.allowed(self._stop.is_heeded), distributed(context):
            try:
                execute(cell, namespace, unbuilt, self._trained.extend)
            finally:
                self._left = process_state.states_left() if self._rank == 0 else {}

    def _speaks(self, cell: RunCell) -> bool:
        """Whether the notebook wants what this rank made: rank 0's, or all where none trains with another."""
        return self._rank == 0 or cell.apart

    def _show(self, cell: RunCell, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """Show something in the notebook; of a cell that trains, what rank 0 shows."""
        if self._speaks(cell):
            sys.stdout.flush()
            self._send(Display(cell.run_id, self._rank, data, metadata))

    def _note(self, text: str) -> None:
        self._send(Notice(self._running, self._rank, text))

    def _send(self, message: Message) -> None:
        try:
            self._link.send(message)
        except OSError:
            os._exit(0)


def main(link: int) -> None:
    """Run a trainer in this process, which has no threads yet; ``link`` is the file descriptor of its link."""
    die_with_parent()
    # Before there are threads, which would keep the mounts of before.
    may_mount = mounts.separate()
    os.environ["MPLBACKEND"] = FIGURES_BACKEND  # the notebook's own, where it was inherited, needs the notebook
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    try:
        Trainer(Link(Connection(link)), may_mount).serve()
    finally:
        sys.stdout.flush()
        # TensorFlow's server threads do not join; nothing is left to be lost.
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
