"""Groups of real trainer processes on loopback, without Spark: each runs cells one after another, as a trainer does."""

from __future__ import annotations

import contextlib
import gc
import linecache
import multiprocessing
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from tfos_magic.transport.identity import Authority, Identity, worker_name

START_SECONDS = 90.0
CELL_SECONDS = 120.0
SEED = 7

# Imported once and forked from then on: TensorFlow's import takes a process seconds, and most of a group's start.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tensorflow", "keras", "tfos_magic.training.distributed_cell", "tfos_magic.training.parameter_server.server"]
)

# A classification problem that every test may use: 131 rows for training, 39 for validation, three classes.
DATA = """
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(11)
features = np.random.default_rng(5).normal(size=(170, 12)).astype("float32")
labels = ((features[:, 0] > 0).astype("int64") + (features[:, 1] + features[:, 2] > 0))
x, y, val_x, val_y = features[:131], labels[:131], features[131:], labels[131:]
from_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mlp():
    return keras.Sequential([keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
"""

# Beside it: batches as those of a fed DataFrame, of which each of SIZE ranks has its share. With SIZE 0 all are whole.
FED = """
from tfos_magic.training.inputs.marks import mark_sharded
from tfos_magic.training.inputs.sharding import shard_batches


def fed(dataset):
    return mark_sharded(shard_batches(dataset, rank, SIZE)) if SIZE else dataset


train = fed(tf.data.Dataset.from_tensor_slices((x, y)).batch(26))  # the last batch has one row
"""


@dataclass(frozen=True)
class Outcome:
    """What a cell left on one rank: the names asked for, or the exception's class name and text."""

    values: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    error: str = ""
    seconds: float = 0.0


class Group:
    """``size`` processes that form one TensorFlow cluster. ``size`` 0 is one process that knows nothing of us.

    ``hosts`` are the addresses they claim, in turn. ``share`` lets them share memory; the code ``prepare``,
    which finds its ``rank``, runs before they form the cluster.
    ``servers`` more processes are parameter servers. What the ranks of different hosts send is ``encrypted`` if asked.
    """

    def __init__(
        self,
        size: int,
        *,
        collective_seconds: float = 60.0,
        share: bool = True,
        prepare: str = "",
        servers: int = 0,
        hosts: Sequence[str] = ("127.0.0.1",),
        nccl: bool = False,
        encrypted: bool = False,
    ) -> None:
        self.size = size
        self.broken = False
        self._jobs: list[Any] = []
        self._away: set[int] = set()
        self._held = [_held_port(hosts[rank % len(hosts)]) for rank in range(max(size, 1))]
        addresses = [_address(held) for held in self._held]
        self._secret = secrets.token_hex()
        authority, self._names = Authority(), [worker_name(rank) for rank in range(size)] if encrypted else []
        self._identities = [authority.identify(name) for name in self._names]
        self._held += [_held_port() for _ in range(servers)]
        self._served = [_address(held) for held in self._held[max(size, 1) :]]
        self.servers = [
            PROCESSES.Process(target=_serve_weights, args=(address, self._secret), name="tfos-test-server", daemon=True)
            for address in self._served
        ]
        for server in self.servers:
            server.start()
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(max(size, 1)):
            pipe, process = self._spawn(rank, addresses if size else [], collective_seconds, share, prepare, nccl)
            self._pipes.append(pipe)
            self.processes.append(process)
        for pipe in self._pipes:
            _await_start(pipe)

    def _spawn(
        self, rank: int, addresses: list[str], seconds: float, share: bool, prepare: str, nccl: bool = False
    ) -> tuple[Connection, ForkServerProcess]:
        ours, theirs = PROCESSES.Pipe()
        tls = (self._identities[rank], self._names) if self._names else None
        process = PROCESSES.Process(
            target=_serve,
            args=(rank, self.size, addresses, theirs, seconds, share, prepare, self._served, self._secret, nccl, tls),
            name=f"tfos-test-trainer-{rank}",
            daemon=True,
        )
        process.start()
        theirs.close()
        return ours, process

    def run(
        self,
        cell: str,
        *names: str,
        seed: int | None = SEED,
        inputs: dict[str, Any] | None = None,
        bare: bool = False,
        on_message: Callable[[int, Any], None] | None = None,
        seconds: float = CELL_SECONDS,
        strategy: str = "sync",
        options: dict[str, Any] | None = None,
        checkpoints: dict[str, Any] | None = None,
        resume: Sequence[Any] = (),
    ) -> list[Outcome]:
        """Run ``cell`` on all ranks and give their outcomes by rank; ``names`` are sent back.

        A ``bare`` cell is not distributed, but finds its rank's ``collectives`` by that name. Without a ``seed``
        TensorFlow is as one that nobody has seeded.
        ``checkpoints`` are the fields of a CheckpointPlan; ``resume`` holds parts that rank 0 goes on from.
        """
        run_id = secrets.token_hex(6)
        self._jobs = []
        for rank, pipe in enumerate(self._pipes):
            run = (run_id, strategy, options or {}, checkpoints, list(resume) if rank == 0 else [])
            self._jobs.append((cell, names, seed, inputs or {}, bare, run))
            pipe.send(("run", self._jobs[rank]))
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + seconds
        while len(outcomes) < len(self._pipes):
            pending = [pipe for rank, pipe in enumerate(self._pipes) if rank not in {*outcomes, *self._away}]
            ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the cell did not end within {seconds} s; ended: {sorted(outcomes)}")
            for pipe in ready:
                if (rank := self._rank_of(pipe)) is not None:
                    self._take(rank, outcomes, on_message)
        # TensorFlow's collectives do not recover from an error.
        self.broken = self.broken or any(
            outcome.kind.endswith(("ClusterError", "Died")) for outcome in outcomes.values()
        )
        return [outcomes[rank] for rank in range(len(self._pipes))]

    def kill(self, rank: int) -> None:
        """End a rank's process, as running out of memory would; :meth:`respawn` is to follow."""
        self._away.add(rank)
        self.processes[rank].kill()
        self.processes[rank].join(10)

    def respawn(self, rank: int) -> None:
        """Put a new process in the place of a killed one, in the run under way. It knows the servers, and no rank."""
        pipe, process = self._spawn(rank, [], CELL_SECONDS, False, "")
        self._pipes[rank], self.processes[rank] = pipe, process
        _await_start(pipe)
        self._away.remove(rank)
        pipe.send(("run", self._jobs[rank]))

    def stop(self, rank: int) -> None:
        """Ask one rank alone to stop its run."""
        self._pipes[rank].send(("stop", None))

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # that trainer is gone already
                pipe.send(("exit", None))
        for server in self.servers:
            server.terminate()
        for process in [*self.processes, *self.servers]:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join(10)
        for held in self._held:
            held.close()

    def _rank_of(self, pipe: Connection) -> int | None:
        """Whose pipe this is; None where that process was killed meanwhile, whether or not another is in its place."""
        rank = self._pipes.index(pipe) if pipe in self._pipes else None
        return None if rank in self._away else rank

    def _take(self, rank: int, outcomes: dict[int, Outcome], on_message: Callable[[int, Any], None] | None) -> None:
        try:
            kind, value = self._pipes[rank].recv()
        except EOFError:
            outcomes[rank] = Outcome(kind="Died", error="the process ended")
            return
        if kind == "outcome":
            outcomes[rank] = value
        elif on_message is not None:
            on_message(rank, value)


def _held_port(host: str = "127.0.0.1") -> socket.socket:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((host, 0))
    return held


def _address(held: socket.socket) -> str:
    return "{}:{}".format(*held.getsockname())


def _await_start(pipe: Connection) -> None:
    if not pipe.poll(START_SECONDS):
        raise TimeoutError(f"a trainer did not start within {START_SECONDS} s")
    kind, text = pipe.recv()
    if kind != "ready":
        raise RuntimeError(text)


def _serve_weights(address: str, secret: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from tfos_magic.training.parameter_server.server import ParameterServer

    server = ParameterServer(address, secret)
    server.join()


def _serve(
    rank: int,
    size: int,
    addresses: list[str],
    pipe: Connection,
    collective_seconds: float,
    share: bool,
    prepare: str,
    served: list[str],
    secret: str,
    nccl: bool,
    tls: tuple[Identity, list[str]] | None,
) -> None:
    import numpy as np

    from tfos_magic.training.collectives import Collectives, form_cluster
    from tfos_magic.training.parameter_server.client import ServerGroup
    from tfos_magic.transport.tls import TlsPeers

    gc.freeze()  # as in a trainer: what is loaded is never garbage
    np.random.seed()  # or it would draw what its siblings draw
    try:
        exec(prepare, {"rank": rank})
        if size and not addresses:  # it came later: there is no group that it could be part of
            collectives = Collectives(rank, size)
        else:
            collectives = form_cluster(
                rank,
                addresses or ["127.0.0.1:0"],
                timeout=60,
                threads=1,
                share=share,
                secret=secret,
                nccl=nccl,
                tls=TlsPeers(*tls) if tls else None,
            )
        collectives.timeout = collective_seconds
        group = ServerGroup(rank, size, served, secret, timeout=collective_seconds) if served else None
    except Exception as error:
        pipe.send(("failed", repr(error)))
        return
    pipe.send(("ready", ""))
    while True:
        kind, job = pipe.recv()
        if kind == "exit":
            break
        if kind == "run":
            _run_job(job, collectives if size else None, pipe, group)
    os._exit(0)  # a killed peer leaves TensorFlow's threads in a state that an orderly exit waits for


def _begin(seed: int | None) -> None:
    """Let a plain process begin with ``seed``, or as one in which nobody has seeded TensorFlow."""
    import keras
    from tensorflow.python.eager import context

    keras.utils.set_random_seed(SEED if seed is None else seed)
    if seed is None:
        context.context()._set_global_seed(None)


def _run_job(job: Any, collectives: Any, pipe: Connection, group: Any = None) -> None:
    import keras

    from tfos_magic.checkpoints.checkpoint import assemble
    from tfos_magic.training.context import CheckpointPlan
    from tfos_magic.training.distributed_cell import RunContext, StopSignal, distributed
    from tfos_magic.transport.messages import StrategyOptions
    from tfos_magic.values import random_state, settings

    cell, names, seed, inputs, bare, (run_id, strategy, options, checkpoints, parts) = job
    lock, stop, done = threading.Lock(), StopSignal(), threading.Event()

    def emit(message: Any) -> None:
        with lock:
            pipe.send(("message", message))

    def listen() -> None:
        while not done.is_set():
            if pipe.poll(0.02) and pipe.recv()[0] == "stop":
                stop.request()

    listener = threading.Thread(target=listen, name="tfos-test-listener")
    listener.start()
    namespace: dict[str, Any] = {"__name__": "__main__", "rank": collectives.rank if collectives else 0, **inputs}
    linecache.cache["<cell>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell>")  # AutoGraph reads it
    started = time.monotonic()
    try:
        namespace["collectives"] = collectives
        if collectives is None or bare:
            _begin(seed)
            exec(compile(cell, "<cell>", "exec"), namespace)
        else:
            plan = CheckpointPlan(enabled=True, **checkpoints) if checkpoints is not None else CheckpointPlan()
            context = RunContext(
                run_id,
                collectives,
                emit,
                stop,
                strategy=strategy,
                seed=SEED if seed is None else seed,
                random=random_state.of_seed(SEED) if seed is None else {},
                options=StrategyOptions(**options),
                checkpoints=plan,
                resume=assemble(parts),
                servers=group,
                event_files=True,
            )
            with distributed(context):
                exec(compile(cell, "<cell>", "exec"), namespace)
        outcome = Outcome({name: namespace[name] for name in names}, seconds=time.monotonic() - started)
    except Exception as error:
        outcome = Outcome(
            kind=type(error).__name__,
            error=f"{error}{getattr(error, 'tfos_hint', '')}\n{traceback.format_exc()}",
            seconds=time.monotonic() - started,
        )
    finally:
        done.set()
        listener.join(5)
    del namespace
    keras.backend.clear_session()
    settings.set_up({})
    with lock:
        pipe.send(("outcome", outcome))
