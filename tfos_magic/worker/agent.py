"""The agent: a Spark task that holds its slot, receives the feed and supervises one trainer process.

It dials the kernel's control socket, does what it is told, and passes its trainer's messages on. It ends when told to,
when its Spark task is cancelled, or by itself when the kernel has been gone for ``GRACE`` seconds; with it go the
trainer, the Flight server and the spool.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import platform
import signal
import tempfile
import time
from typing import Any

import zmq

import tfos_magic
from tfos_magic.feed.agent.feed_service import FeedService
from tfos_magic.processes.child_process import TrainerProcess
from tfos_magic.processes.fork_client import ForkClient
from tfos_magic.spark.liveness import ExecutorLiveness, SparkLiveness
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.messages import (
    AgentEnded,
    Answer,
    CheckpointPart,
    Display,
    Heartbeat,
    Message,
    Output,
    OutputTaken,
    Register,
    RunCell,
    RunFinished,
    RunStarted,
    Shutdown,
    StartTrainer,
    StopRun,
    TrainerExited,
    refusal,
)
from tfos_magic.transport.wake_queue import WakeQueue
from tfos_magic.worker.host import HostSlot, hold_port, trainer_environment

log = logging.getLogger("tfos_magic.worker")

GRACE = 5.0
BUSY_GRACE = 30.0
HEARTBEAT = 1.0
LOADING_TIMEOUT = 60.0
LAST_WORDS = 1.0
ASKED = "asked to stop"
OUTPUT_INTERVAL = 0.1
OUTPUT_AT_ONCE, OUTPUT_BACKLOG = 1 << 20, 16 << 20
"""Bytes on their way to the kernel beyond which a trainer's prints wait: no loop that prints fills a memory."""


class Agent:
    """One loop over the control socket, the trainer's link and its output; commands are carried out in it."""

    def __init__(self, config: AgentConfig, place: HostSlot) -> None:
        self._config = config
        self.place = place
        self._lifeline: SparkLiveness | ExecutorLiveness = SparkLiveness()
        self._client = ControlClient(config)
        self._send = self._client.send
        self._poller = zmq.Poller()
        self._outbox: WakeQueue[Message] = WakeQueue()
        self._feeds = FeedService(config, self.place.host, self._outbox.put)
        self._port = hold_port(self.place.host)
        self._forks = ForkClient(config.hash_seed, trainer_environment())
        self._trainer: TrainerProcess | None = None
        self._rank = place.slot
        self._run_id = ""
        self._pending: dict[str, list[str]] = {}
        self._reading = True
        self._flushed = self._beat = 0.0
        self._turned = time.monotonic()
        self._outcome = ""
        self._log = LogOnce(log)

    def run(self) -> str:
        """Serve until the end; gives why it ended. Everything that was opened is closed on the way out."""
        previous = [(s, signal.signal(s, self._on_signal)) for s in (signal.SIGTERM, signal.SIGHUP)]
        try:
            self._feeds.receiver.start()
            self._send(self._register())
            self._poller.register(self._client.socket, zmq.POLLIN)
            self._poller.register(self._client.monitor, zmq.POLLIN)
            self._poller.register(self._outbox.fileno(), zmq.POLLIN)
            while not self._outcome:
                self._turn()
            if self._outcome != ASKED:
                self._send(AgentEnded(self._outcome))
            return self._outcome
        finally:
            self._close()
            for number, handler in previous:
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGHUP and self._lifeline.known:
            return
        self._outcome = self._outcome or f"signal {number}"

    def _register(self) -> Register:
        return Register(
            slot=self.place.slot,
            host=self.place.host,
            pid=os.getpid(),
            tensor_port=int(self._port.getsockname()[1]),
            feed=self._feeds.receiver.endpoint,
            job=self._config.job,
            executor=self.place.executor,
            versions={"python": platform.python_version(), "tfos_magic": tfos_magic.__version__},
        )

    def _turn(self) -> None:
        """One round: what arrived, then what is due."""
        wait = OUTPUT_INTERVAL if self._pending else HEARTBEAT / 2
        ready = dict(self._poller.poll(int(wait * 1000)))
        if self._client.monitor in ready:
            self._client.note_connection()
        if self._client.socket in ready and (message := self._client.receive()) is not None:
            self._carry_out(message)
        for message in self._outbox.taken():
            self._send(message)
        if self._trainer:
            self._listen_to_trainer(self._trainer, ready)
            self._hold_output(self._trainer)
        self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        size = sum(len(part) for parts in self._pending.values() for part in parts)
        if size > OUTPUT_AT_ONCE or (size and now - self._flushed >= OUTPUT_INTERVAL):
            self._flush_output()
        if now - self._beat >= HEARTBEAT:
            self._beat = now
            self._send(self._heartbeat())
        if self._lifeline.cut:
            self._outcome = "its Spark task has ended"
        self._client.excuse(self._stalled)
        patience = BUSY_GRACE if self._client.answered or self._config.relayed else GRACE
        if self._client.out_of_reach > patience:
            self._outcome = self._client.describe_loss(self.place.host, patience)
        if self._trainer:
            self._check_life(self._trainer)
        self._turned = time.monotonic()

    @property
    def _stalled(self) -> float:
        """Seconds since the last turn where this process itself did not run for a while; else 0."""
        seconds = time.monotonic() - self._turned
        return seconds if seconds > 2 * HEARTBEAT else 0.0

    def _check_life(self, trainer: TrainerProcess) -> None:
        """Report a trainer that has ended without closing its link, and end one that does not answer any more."""
        if self._stalled:  # what the trainer said meanwhile has yet to be read
            trainer.heard = time.monotonic()
        limit = self._config.heartbeat_timeout
        # Importing TensorFlow keeps all other threads from running for seconds, on a busy host for many.
        limit = limit if trainer.ready else max(limit, LOADING_TIMEOUT)
        if trainer.silence > limit:
            self._report_exit(trainer, f"did not answer for {limit:.0f} s and was ended")
        elif trainer.exit_status() is not None and trainer.silence > LAST_WORDS:
            self._report_exit(trainer)

    def _heartbeat(self) -> Heartbeat:
        trainer = self._trainer
        rss, silence = (trainer.rss(), trainer.silence * trainer.ready) if trainer else (0, 0.0)
        return Heartbeat(rss, self._feeds.spool.budget.used, self._feeds.rows(), silence)

    def _carry_out(self, message: Message) -> None:
        """Obey the kernel; what makes no sense is told, and ends nothing. What this host lacks ends the agent."""
        try:
            self._obey(message)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # whatever an order leads to
            kind = type(message).__name__
            self._log.warning(f"{kind}, {type(error).__name__}", f"an error while handling {kind}", trace=True)
            if (answer := refusal(message, self._rank, error)) is not None:
                self._send(answer)

    def _obey(self, message: Message) -> None:
        match message:
            case StartTrainer():
                self._start_trainer(message)
            case RunCell():
                self._run_id = message.run_id
                if self._trainer is not None:
                    self._trainer.send(self._feeds.prepared(message, self._trainer.rank))
            case StopRun() | CheckpointPart() | OutputTaken() | Answer():
                self._to_trainer(message)
            case Shutdown():
                self._outcome = ASKED
            case _:
                self._feeds.obey(message)

    def _start_trainer(self, message: StartTrainer) -> None:
        self._end_trainer()
        if message.names:
            message = dataclasses.replace(message, identity=self._config.identity)
        self._flush_output()
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.place.gpus) or "-1"}
        trainer = TrainerProcess(self._forks, message.generation, message.rank, gpus, _shared_by(message))
        self._trainer, self._rank = trainer, message.rank
        for fd in (trainer.inbox.fileno(), *trainer.streams):
            self._poller.register(fd, zmq.POLLIN)
        trainer.send(message)

    def _to_trainer(self, message: Message) -> None:
        if self._trainer is not None:
            self._trainer.send(message)

    def _listen_to_trainer(self, trainer: TrainerProcess, ready: dict[Any, int]) -> None:
        for fd in [fd for fd in trainer.streams if fd in ready]:
            self._read_output(trainer, fd)
        if trainer.inbox.fileno() not in ready:
            return
        for message in trainer.inbox.taken():
            if message is None:
                self._report_exit(trainer, trainer.fault)
                return
            self._pass_on(trainer, message)

    def _hold_output(self, trainer: TrainerProcess) -> None:
        reading = self._client.backlog < OUTPUT_BACKLOG
        if reading != self._reading:
            self._reading = reading
            for fd in trainer.streams:
                self._poller.register(fd, zmq.POLLIN if reading else 0)

    def _pass_on(self, trainer: TrainerProcess, message: Message) -> None:
        if isinstance(message, (RunStarted, RunFinished, Display)):
            for fd in list(trainer.streams):
                self._read_output(trainer, fd)
            self._flush_output()
        self._send(message)

    def _read_output(self, trainer: TrainerProcess, fd: int) -> None:
        stream = trainer.streams[fd]
        if text := trainer.read(fd):
            self._pending.setdefault(stream, []).append(text)
        if fd not in trainer.streams:
            self._poller.register(fd, 0)

    def _flush_output(self) -> None:
        self._flushed = time.monotonic()
        for stream, parts in self._pending.items():
            self._send(Output(self._run_id, self._rank, stream, "".join(parts)))
        self._pending.clear()

    def _report_exit(self, trainer: TrainerProcess, reason: str = "") -> None:
        """Tell the kernel that the trainer has ended; one that is ended for a ``reason`` has not, yet."""
        for fd in list(trainer.streams):
            self._read_output(trainer, fd)
        self._flush_output()
        deadline = time.monotonic() + (0 if reason else 5)
        while (status := trainer.exit_status()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        code, number = status or (0, int(signal.SIGKILL))
        reason = reason or trainer.why(number)
        self._send(TrainerExited(trainer.generation, trainer.rank, code, number, "\n".join(trainer.tail), reason))
        self._end_trainer()

    def _end_trainer(self) -> None:
        trainer, self._trainer = self._trainer, None
        if trainer is None:
            return
        for fd in (trainer.inbox.fileno(), *trainer.streams):
            self._poller.register(fd, 0)  # one that is held, too
        self._reading = True
        trainer.kill()

    def _close(self) -> None:
        self._end_trainer()
        self._forks.close()
        self._feeds.close()
        self._outbox.close()
        self._port.close()
        self._client.close()


def _shared_by(message: StartTrainer) -> str:
    """A folder for the trainers of this generation on this host; its name tells nothing of their secret."""
    name = hashlib.sha256(message.secret.encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"tfos-shared-{name}")
