"""What the kernel pays for many workers: simulated agents that speak the real protocol to the real control server.

The kernel's side is all there: control socket, membership, a run, and the picture that its panel draws four times a
second. Agents are connections of a few processes of this machine, which answer as agents do: a sign of life each second
and progress as often as the trainers of so large a cluster send it, or as ``--progress`` says. Shown are the seconds
until all have registered, the processor seconds and the messages of one second of the run, the memory that it takes,
the seconds until all have answered a stop, and what a picture costs.

    python benchmarks/agents.py [--agents 1000] [--seconds 20] [--progress 0.25]
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar
from unittest import mock

import psutil
import zmq
from plain import start_process
from sessions import local_session

from tfos_magic import TFCluster
from tfos_magic.cluster import agents
from tfos_magic.cluster.runs.request import Observer
from tfos_magic.errors import RunInterrupted
from tfos_magic.notebook.views.worker_rows import worker_rows
from tfos_magic.training.logs.progress import seconds_between
from tfos_magic.transport import control_client
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.messages import (
    FeedEndpoint,
    Heartbeat,
    Message,
    Progress,
    Register,
    RunCell,
    RunFinished,
    RunStarted,
    Shutdown,
    StartTrainer,
    StopRun,
    TrainerReady,
)
from tfos_magic.widgets.panel import values_of

PROCESSES = 4
BEAT_SECONDS = 1.0
STEPS = 1000


class Agent:
    """A simulated agent: what is due when, and what it answers."""

    def __init__(self, config: AgentConfig, between: float) -> None:
        self.client, self._slot, self.between = ControlClient(config), config.slot, between
        self._run_id, self._step, self._beat_at = "", 0, 0.0
        feed = FeedEndpoint("grpc://127.0.0.1:1", f"worker-{config.slot}")
        self.client.send(Register(config.slot, f"10.0.{config.slot // 250}.1", 1000 + config.slot, 1, feed, config.job))

    def tick(self) -> None:
        """As often as progress is due: that, and a sign of life each second."""
        if time.monotonic() >= self._beat_at:
            self.client.send(Heartbeat(trainer_rss=1 << 29))
            self._beat_at = time.monotonic() + BEAT_SECONDS - 0.01
        if self._run_id:
            self._step += 1
            loss, rows = {"loss": 1 / self._step, "accuracy": 0.5}, 32 * self._step
            self.client.send(
                Progress(self._run_id, self._slot, "train", 0, 3, self._step, STEPS, rows, loss, 1000 * self._step)
            )

    def obey(self, message: Message | None) -> bool:
        """Answer; False where it is to end."""
        match message:
            case StartTrainer():
                self.client.send(TrainerReady(message.generation, message.rank, 5000 + message.rank))
            case RunCell():
                self._run_id = message.run_id
                self.client.send(RunStarted(message.run_id, self._slot))
            case StopRun():
                self._run_id = ""
                self.client.send(RunFinished(message.run_id, self._slot, "stopped"))
            case Shutdown():
                return False
        return True


def serve(pipe: Any) -> None:
    """Be the agents of the configurations that come through ``pipe`` until all have been shut down."""
    context = zmq.Context()
    context.max_sockets = 10_000
    poller, by_socket, due = zmq.Poller(), {}, []
    with mock.patch.object(control_client.zmq, "Context", return_value=context):
        for config, between in pipe.recv():
            agent = Agent(config, between)
            poller.register(agent.client.socket, zmq.POLLIN)
            poller.register(agent.client.monitor, zmq.POLLIN)
            by_socket[agent.client.socket], by_socket[agent.client.monitor] = agent, agent
            due.append((time.monotonic() + (config.slot % 97) / 97 * between, config.slot, agent))
    heapq.heapify(due)
    living = len(due)
    while living:
        for socket, _ in poller.poll(max(0, int((due[0][0] - time.monotonic()) * 1000))):
            agent = by_socket[socket]
            if socket is agent.client.monitor:
                agent.client.note_connection()
            elif not agent.obey(agent.client.receive()):
                poller.unregister(socket)
                living -= 1
        while due[0][0] <= time.monotonic():
            when, slot, agent = heapq.heappop(due)
            agent.tick()
            heapq.heappush(due, (when + agent.between, slot, agent))
    time.sleep(0.5)


class Job:
    """In the place of the Spark job of an agent."""

    configs: ClassVar[list[AgentConfig]] = []

    def __init__(self, spark: Any, config: AgentConfig, **_: Any) -> None:
        self.tag, self._config = config.job, config

    def start(self) -> None:
        Job.configs.append(self._config)

    def wait(self, timeout: float) -> bool:
        return True

    def cancel(self) -> None:
        pass


class Screen(Observer):
    """Draws as the panel does, and counts what it takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.bytes = 0
        self._next = 0.0

    def update(self, state: Any) -> None:
        if time.monotonic() < self._next:
            return
        began = time.thread_time()
        values = values_of(state, log=False, rows=partial(worker_rows, detailed={0}))
        self.bytes = len(json.dumps(values))
        self.seconds.append(time.thread_time() - began)
        self._next = time.monotonic() + 0.25


@contextmanager
def simulated(count: int, progress: float | None) -> Iterator[list[Any]]:
    """Processes that are the agents of a cluster which is started meanwhile."""
    started = [start_process(serve) for _ in range(PROCESSES)]
    launch = agents.Agents._launch

    def launch_all(self: Any, slots: Any, control: Any, deadline: float) -> None:
        await_agents = self._membership.await_agents

        def send_first(*arguments: Any) -> None:
            for number, (pipe, _) in enumerate(started):
                mine = Job.configs[number::PROCESSES]
                pipe.send([(config, progress or seconds_between(config.slot, count)) for config in mine])
            await_agents(*arguments)

        with mock.patch.object(self._membership, "await_agents", send_first):
            launch(self, slots, control, deadline)

    with (
        mock.patch.object(agents, "AgentJob", Job),
        mock.patch.object(agents.Agents, "_launch", launch_all),
        mock.patch.object(agents.Agents, "await_slots"),
    ):
        yield [process for _, process in started]
    for _, process in started:
        process.join(20)


def measure(count: int, seconds: float, progress: float | None) -> None:
    spark = local_session()
    kernel, screen = psutil.Process(), Screen()
    memory = kernel.memory_info().rss
    with simulated(count, progress), TFCluster(spark, workers=count) as cluster:
        began = time.perf_counter()
        heard = _counted(cluster)
        run = cluster.submit("pass", observer=screen)
        while sum(worker.state == "training" for worker in run.state.workers) < count:
            time.sleep(0.1)
        print(f"{count} agents run after {time.perf_counter() - began:.1f} s")
        messages, cpu, began = heard[0], _cpu(kernel), time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        sent = count * (1 / BEAT_SECONDS + 1 / (progress or seconds_between(1, count)))
        print(f"messages a second {(heard[0] - messages) / took:12,.0f} of {sent:,.0f}")
        print(f"processor         {(_cpu(kernel) - cpu) / took:12.2f} of a core")
        print(f"memory            {(kernel.memory_info().rss - memory) / 1e6:12.0f} MB more than before")
        print(
            f"picture           {1000 * sorted(screen.seconds)[len(screen.seconds) // 2]:12.1f} ms, {screen.bytes:,} B"
        )
        began = time.perf_counter()
        with suppress(RunInterrupted):
            run.stop()
        print(f"stopped after     {time.perf_counter() - began:12.2f} s: {run.state.phase.value}")


def _counted(cluster: TFCluster) -> list[int]:
    heard = [0]

    def count(peer: bytes, message: Message) -> None:
        heard[0] += 1

    cluster.hearers.append(count)
    return heard


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--progress", type=float, default=None, help="seconds between two messages of progress")
    options = parser.parse_args()
    measure(options.agents, options.seconds, options.progress)


if __name__ == "__main__":
    main()
