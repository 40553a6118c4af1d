"""What the kernel knows of each worker: its agent, its trainer, the last lines of its output."""

from __future__ import annotations

import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pkgutil import resolve_name
from typing import Any
from urllib.parse import urlsplit

from tfos_magic.errors import ClusterError, StartTimeout, WorkerLost
from tfos_magic.spark.encryption import Encrypt
from tfos_magic.transport.agent_config import HEARTBEAT_TIMEOUT
from tfos_magic.transport.messages import Heartbeat, Register, TrainerExited, TrainerReady

LOG_LINES, LINE_CHARACTERS, OUTPUT_LINES = 500, 10_000, 10
LEAST_HEARTBEAT_TIMEOUT, ANSWER_SECONDS = 3.0, 2.0
_SUSPICION = {"SIGKILL": ", perhaps out of memory", "SIGABRT": ", perhaps for lack of memory"}


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that is asked for: the arguments of :class:`~tfos_magic.cluster.cluster.TFCluster`.

    Raises :class:`ClusterError` for what no cluster can be.
    """

    workers: int = 2
    servers: int = 0
    cores: int = 1
    gpus: int = 0
    start_timeout: float = 120.0
    driver_host: str = ""
    control_port: int = 0
    spool_dir: str | None = None
    spool_gb: float | None = None
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    nccl: bool = False
    encrypt: Encrypt = "auto"
    hold_slots: bool = True
    idle_timeout: float = 0.0
    most_workers: int = 0
    via: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 0 or self.cores < 1 or self.gpus < 0:
            raise ClusterError(
                "A cluster needs at least 1 worker with at least 1 core: check -n, --ps, --cores and --gpus."
            )
        if self.encrypt not in (True, False, "auto"):
            raise ClusterError(f"encrypt must be True, False or 'auto', not {self.encrypt!r}.")
        if self.most_workers and (self.most_workers < self.workers or self.servers or not self.hold_slots):
            raise ClusterError(
                f"most_workers is {self.most_workers}: it goes with no fewer than {self.workers} workers, with no "
                "parameter servers, and with hold_slots."
            )
        if self.via not in ("", "spark"):
            raise ClusterError(f"via is {self.via!r}: it is 'spark', for messages that go by Spark, or empty.")
        if self.idle_timeout < 0:
            raise ClusterError("idle_timeout is in seconds: 0 or more, and 0 keeps an idle cluster.")
        if self.heartbeat_timeout < LEAST_HEARTBEAT_TIMEOUT:
            raise ClusterError(
                f"heartbeat_timeout must be {LEAST_HEARTBEAT_TIMEOUT:.0f} or more: heartbeats come once a second."
            )

    @property
    def slots(self) -> int:
        """Cores that Spark must have: those of workers and parameter servers, one to feed DataFrames by, and one for
        messages that go by Spark."""
        beside = int(self.hold_slots) + bool(self.via)
        return (max(self.workers, self.most_workers) + self.servers) * self.cores + beside


class ClusterPhase(str, Enum):
    """Where a cluster is. ``STOPPED`` and ``FAILED`` are ends."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (ClusterPhase.STOPPED, ClusterPhase.FAILED)


@dataclass
class Worker:
    """One rank, from its agent's registration on. Its ``role`` is ``worker`` or ``ps``, for parameter server.

    ``ready`` is the trainer's own report, None while it loads; ``farewell`` why the agent ended without being asked to.
    """

    rank: int
    peer: bytes
    agent: Register
    local_rank: int = 0
    local_size: int = 1
    ready: TrainerReady | None = None
    beat: Heartbeat = field(default_factory=Heartbeat)
    seen: float = field(default_factory=time.monotonic)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    farewell: str = ""
    role: str = "worker"

    @property
    def address(self) -> str:
        """``host:port`` of this rank's TensorFlow server."""
        return f"{self.agent.host}:{self.agent.tensor_port}"

    def note_output(self, text: str) -> None:
        """Keep lines that it printed; of a very long one the last part."""
        self.log.extend(line[-LINE_CHARACTERS:] for line in text.splitlines() if line.strip())

    @property
    def pid(self) -> int:
        """The trainer's process id; 0 while there is none."""
        return self.ready.pid if self.ready else 0


@dataclass(frozen=True)
class WorkerStatus:
    """One line of ``%tfos status``. Memory and spool in bytes."""

    rank: int
    host: str
    pid: int
    agent_pid: int
    device: str
    state: str
    memory: int
    spool: int
    role: str = "worker"


@dataclass(frozen=True)
class ClusterStatus:
    """What ``%tfos status`` shows."""

    phase: str
    master: str
    generation: int
    workers: tuple[WorkerStatus, ...]
    tensorflow: str = ""
    keras: str = ""
    reason: str = ""

    def with_busy(self, ranks: Container[int]) -> ClusterStatus:
        """The same, where the workers of these ``ranks`` that are ready have work."""

        def seen(worker: WorkerStatus) -> WorkerStatus:
            has_work = worker.rank in ranks and worker.role == "worker" and worker.state == "ready"
            return replace(worker, state="busy") if has_work else worker

        return replace(self, workers=tuple(map(seen, self.workers)))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        bundle: dict[str, str] = resolve_name("tfos_magic.notebook.views.tables:cluster_bundle")(self)
        return bundle


def rank_workers(agents: Sequence[tuple[bytes, Register]], servers: int = 0) -> list[Worker]:
    """Give ranks by Spark slot, and each rank its place among those of its host; the last are parameter ``servers``."""
    ordered = sorted(agents, key=lambda pair: pair[1].slot)
    sizes = Counter(agent.host for _, agent in ordered)
    seen: Counter[str] = Counter()
    workers = []
    for rank, (peer, agent) in enumerate(ordered):
        role = "ps" if rank >= len(ordered) - servers else "worker"
        workers.append(Worker(rank, peer, agent, seen[agent.host], sizes[agent.host], role=role))
        seen[agent.host] += 1
    return workers


def describe_exit(exited: TrainerExited) -> str:
    """What happened to a trainer, as the end of a sentence about it."""
    if exited.reason:
        return exited.reason
    if not exited.signal:
        return f"ended with exit code {exited.exit_code}"
    name = signal.Signals(exited.signal).name
    return f"was killed by signal {exited.signal} ({name}{_SUSPICION.get(name, '')})"


RELAY = "the relay of its messages"


def too_few(agents: int, size: int, endpoint: str) -> StartTimeout:
    """Of ``size`` agents, which dial ``endpoint`` if it is not a relay, so many came up in time."""
    reach = ", set %config TFOS.driver_host to an address they reach" if endpoint else ""
    return StartTimeout(
        f"{agents} of {size} workers came up in time. Spark has not started the other tasks, for they need {size} free "
        f"slots at once and feeding one more{endpoint and f', or they cannot reach {endpoint}'}: see the executors' "
        f"logs{reach}, or give more --start-timeout."
    )


def silence_of(members: Sequence[Worker], silent: Sequence[Worker], pause: float, timeout: float) -> str:
    """What is waited for while agents are ``silent``, or trainers of theirs for more than ``pause`` seconds; empty
    where none is."""
    what = "worker" if silent else "the process of worker"
    of = silent or [worker for worker in members if worker.beat.trainer_silence > pause]
    names = ", ".join(f"{worker.rank} on {worker.agent.host}" for worker in of)
    return f"{what} {names}, silent, and lost after {timeout:.0f} s of that" if names else ""


def loss_of(missing: Sequence[Worker], heartbeat_timeout: float, lost: str) -> WorkerLost:
    """The loss of the one that was silent first, and of those that said why they ended none before the others.

    ``lost`` is what is known of the first of them.
    """
    worker = min(missing, key=lambda worker: (bool(worker.farewell), worker.seen))
    others = ", ".join(f"{other.rank} on {other.agent.host}" for other in missing if other is not worker)
    silent, also = time.monotonic() - worker.seen, "so was"
    if silent > heartbeat_timeout:
        how = f"did not answer for {silent:.0f} s"
        also = "nor did"
    elif worker.farewell:
        how = f"was ended from outside ({lost})"
    elif RELAY in lost:
        how = f"was lost with {RELAY}, on an executor"
    else:
        how = "was lost because its executor or its Spark task died"
    how += f"; {also} worker {others}" if others else ""
    return WorkerLost(worker.rank, worker.agent.host, how, output="\n".join(list(worker.log)[-OUTPUT_LINES:]))


def death_of(worker: Worker, exited: TrainerExited) -> WorkerLost:
    """The loss of a worker whose trainer died while it was starting."""
    tail = "\n".join(exited.output.splitlines()[-OUTPUT_LINES:])
    return WorkerLost(worker.rank, worker.agent.host, f"{describe_exit(exited)} while it was starting", output=tail)


def status_of(worker: Worker, lost: bool = False, ended: bool = False) -> WorkerStatus:
    """The worker as one line; one that is ``lost`` keeps its place until another one takes it."""
    state = "ready" if worker.ready and not worker.ready.error else "loading TensorFlow"
    return WorkerStatus(
        rank=worker.rank,
        host=worker.agent.host,
        pid=worker.pid,
        agent_pid=worker.agent.pid,
        device=worker.ready.device if worker.ready else "",
        state="ended" if ended else "lost" if lost else state,
        memory=0 if ended else worker.beat.trainer_rss,
        spool=0 if ended else worker.beat.spool_bytes,
        role=worker.role,
    )


def answers(worker: Worker) -> bool:
    """Whether the host of a worker takes a connection, or refuses one, as a host does whose worker has ended."""
    place = urlsplit(worker.agent.feed.uri)
    try:
        socket.create_connection((place.hostname, place.port or 0), ANSWER_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
