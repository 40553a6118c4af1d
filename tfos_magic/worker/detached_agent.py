"""An agent that leaves its Spark task: a process of its own, so that the task's slot is free for others.

TensorFlowOnSpark leaves TensorFlow on executors in this way, so that a job may feed it where there are no more slots
than workers. It goes with its executor, and with the kernel as any agent.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

import psutil

from tfos_magic.spark.liveness import ExecutorLiveness
from tfos_magic.transport.agent_config import DETACHED, AgentConfig
from tfos_magic.transport.messages import StartTrainer
from tfos_magic.worker.agent import Agent
from tfos_magic.worker.host import HostSlot


def detach_agent(config: AgentConfig, place: HostSlot) -> str:
    """Run an agent in a child process; returns when it starts its trainer, and all agents of the cluster are there.

    Until then the task keeps its slot, so that each agent gets one.
    """
    ready = detach(lambda executor, told: DetachedAgent(config, place, executor, told).run())
    try:
        return DETACHED if os.read(ready, 1) else "its agent has ended"
    finally:
        os.close(ready)


def detach(live: Callable[[ExecutorLiveness, int], object]) -> int:
    """Run ``live`` in a child process of its own session, and give the end of a pipe to read what it writes to the
    other one, which it is given along with the life of the executor."""
    executor = _executor()
    ready, told = os.pipe()
    if (child := os.fork()) == 0:
        os.close(ready)
        _live(live, executor, told)
    threading.Thread(target=os.waitpid, args=(child, 0), name="tfos-reaper", daemon=True).start()
    os.close(told)
    return ready


class DetachedAgent(Agent):
    """An agent that lives as long as the executor ``executor``; the first order for a trainer is told to ``told``."""

    def __init__(self, config: AgentConfig, place: HostSlot, executor: ExecutorLiveness, told: int) -> None:
        super().__init__(config, place)
        self._lifeline = executor
        self._told = told

    def _start_trainer(self, message: StartTrainer) -> None:
        super()._start_trainer(message)
        told, self._told = self._told, -1
        if told >= 0:
            os.write(told, b"1")
            os.close(told)


def _executor() -> int:
    """The process that holds Spark's workers: above their daemon, where Spark uses one."""
    parent = psutil.Process(os.getppid())
    return parent.ppid() if any("daemon" in part for part in parent.cmdline()) else parent.pid


def _live(live: Callable[[ExecutorLiveness, int], object], executor: int, told: int) -> NoReturn:
    """Do it in this process, which keeps nothing of the Spark worker's but its output."""
    try:
        os.setsid()  # the daemon hangs up on its group
        os.closerange(3, told)
        os.closerange(told + 1, 1 << 16)
        live(ExecutorLiveness(executor), told)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)
