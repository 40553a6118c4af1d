"""The agents of a cluster: each is the one task of a Spark job of its own; one that is lost begins again in another."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import uuid4

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.startup import tell, tell_while
from tfos_magic.cluster.via_spark.detour import Detour
from tfos_magic.cluster.workers import ClusterSpec, answers
from tfos_magic.errors import StartTimeout
from tfos_magic.spark.connect.reachability import gone, has_gone, is_silent
from tfos_magic.spark.encryption import Encryption
from tfos_magic.spark.failures import cause_of, has_ended, with_remedy
from tfos_magic.spark.invitation import Invitation
from tfos_magic.spark.locations import home_of
from tfos_magic.spark.session import (
    Session,
    busy_cores,
    cancel_tag,
    copies_long_tasks,
    end_of,
    give_up_executor,
    is_connect,
    is_dynamic,
    is_stopped,
    job_tag,
    total_cores,
)
from tfos_magic.spark.shipping import ship_package
from tfos_magic.spark.slots import await_free, await_slots
from tfos_magic.transport.agent_config import DETACHED, AgentConfig
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Authority, worker_name
from tfos_magic.transport.messages import Shutdown
from tfos_magic.worker.agent_task import RESULT_SCHEMA, AgentTask

log = logging.getLogger("tfos_magic.cluster")

CANCEL_TIMEOUT, SILENT_TIMEOUT, ROOM_SECONDS, ENDING_SECONDS = 10.0, 1.5, 15.0, 5.0
HASH_SEED = "0"
"""Python's in trainers, one for all kernels: a run that is resumed finds sets of strings in the order they had."""


class Agents:
    """One agent for each member of ``membership``, with the cores, GPUs and spool of ``spec`` each."""

    def __init__(
        self, spark: Session, membership: Membership, spec: ClusterSpec, token: str, authority: Authority
    ) -> None:
        self._jobs: dict[int, AgentJob] = {}
        self._spark, self._membership, self._spec = spark, membership, spec
        self._token, self._authority, self._home = token, authority, ""
        self._numbers = itertools.count()
        self.encryption = Encryption(False, "", spec.spool_dir, spec.spool_gb)
        self.invitation = Invitation(spark)
        self.detour = Detour(spark, membership, spec.via, spec.driver_host)

    @property
    def cores(self) -> int:
        """What Spark reserves for all of them."""
        return self._membership.size * self._spec.cores

    def await_slots(self, deadline: float, released: int = 0) -> None:
        """Wait until Spark has room for them, at most until ``deadline`` (monotonic); see :func:`await_slots`."""
        feeding = int(self._spec.hold_slots) + self.detour.slots
        self._await_slots(self._membership.size, deadline, released=released, feeding=feeding)

    def check_growth(self, workers: int) -> None:
        """Raise :class:`StartTimeout` where Spark has no room for so many, once tasks that are ending have ended."""
        if workers > len(self._membership.workers):
            self._await_slots(workers + self._spec.servers, time.monotonic() + ENDING_SECONDS, released=self.cores)

    def _await_slots(self, agents: int, deadline: float, **how: Any) -> None:
        await_slots(self._spark, agents, self._spec.cores, deadline, waiting=tell, **how)

    def launch(self, control: ControlServer, deadline: float) -> None:
        """Start all agents and wait for them to register at ``control``."""
        self.ask("this package to go to the executors", self._prepare)
        self._launch(range(self._membership.size), control, deadline)

    def _prepare(self) -> None:
        ship_package(self._spark)
        self._home = home_of(self._spark)

    def ask(self, what: str, work: Callable[[], Any]) -> None:
        """Have Spark do ``work``, which a Connect server may not end for long; tell ``what`` is waited for."""
        if is_connect(self._spark):
            tell_while(what, math.inf, work, self._membership.heed)
        else:
            work()

    def _launch(self, slots: Collection[int], control: ControlServer, deadline: float) -> None:
        endpoint = self.detour.endpoint(control.endpoint, deadline)
        jobs = {slot: self._job(slot, control, endpoint) for slot in slots}
        self._jobs.update(jobs)
        control.forget(self._membership.gather({slot: job.tag for slot, job in jobs.items()}))
        for job in jobs.values():
            job.start()
        if self.detour.take(control.endpoint, deadline, control.log):
            self._membership.give_up(slots)
            self._cancel(slots)
            self.await_slots(deadline)
            self._launch(slots, control, deadline)
            return
        self._membership.await_agents(deadline - time.monotonic(), "" if self.detour.taken else endpoint)

    def _job(self, slot: int, control: ControlServer, endpoint: str) -> AgentJob:
        job, spec = f"tfos-{uuid4().hex[:12]}", self._spec
        keys = control.issue(job)
        config = AgentConfig(
            endpoint,
            keys.server_public,
            keys.public,
            keys.secret,
            self._token,
            self._authority.identify(worker_name(next(self._numbers))),
            self.encryption.spool_dir,
            self.encryption.spool_gb,
            job=job,
            slot=slot,
            heartbeat_timeout=self._membership.heartbeat_timeout,
            home=self._home,
            hash_seed=os.environ.get("PYTHONHASHSEED", "").strip() or HASH_SEED,
            detached=not spec.hold_slots,
            contact_timeout=self.detour.patience,
        )
        return AgentJob(self._spark, config, cores=spec.cores, gpus=spec.gpus, on_end=self._on_end)

    def clear(self, slots: Collection[int]) -> None:
        """End what is left of the agents of these slots, which are lost."""
        self._give_up_vanished(slots)
        self._cancel(slots)

    def free(self) -> int:
        """How many more agents Spark has room for at this moment, beside feeding; 0 where it does not tell."""
        total = total_cores(self._spark)
        return 0 if total is None else max(0, total - busy_cores(self._spark) - 1) // self._spec.cores

    def await_room(self, agents: int, seconds: float) -> bool:
        """Whether Spark has room for so many more agents, within so many ``seconds``; more where it makes that room."""
        if is_dynamic(self._spark):
            self.invitation.send(agents * self._spec.cores)
            return await_free(self.free, agents, time.monotonic() + max(seconds, ROOM_SECONDS), tell)
        try:
            self._await_slots(agents, time.monotonic() + seconds, patient=True)
        except StartTimeout:
            return False
        return True

    def relaunch(self, slots: Collection[int], control: ControlServer, deadline: float) -> None:
        """Launch others in the place of agents that are lost."""
        self._await_slots(len(slots), deadline, patient=True)
        try:
            self._launch(slots, control, deadline)
        except BaseException:
            for slot in slots:
                self._jobs[slot].cancel()
            self._membership.give_up(slots)
            raise

    def _give_up_vanished(self, slots: Collection[int]) -> None:
        """Have Spark give up the executors of agents that are silent, on hosts that do not answer: for minutes it would
        go on sending them tasks."""
        silent = self._membership.silent(self._membership.heartbeat_timeout)
        for executor in {worker.agent.executor for worker in silent if worker.rank in slots and not answers(worker)}:
            log.warning("asked Spark to replace executor %s, whose host does not answer", executor)
            give_up_executor(self._spark, executor)

    def grow(self, size: int, control: ControlServer, deadline: float) -> None:
        """Launch agents for more slots, so that there are ``size`` of them; where that fails, all is as before."""
        before = self._membership.size
        slots = range(before, size)
        self._await_slots(len(slots), deadline)
        self._membership.size = size
        try:
            self._launch(slots, control, deadline)
        except BaseException:
            self.keep(range(before), control)
            raise

    def keep(self, slots: Sequence[int], control: ControlServer) -> None:
        """Go on with the agents of these slots alone, which become the first ones, in this order; end the others."""
        others = self._membership.keep(slots)
        for peer in others:
            control.send(peer, Shutdown())
        ending = [job for slot, job in self._jobs.items() if slot not in slots]
        self._jobs = {number: self._jobs[slot] for number, slot in enumerate(slots)}
        deadline = time.monotonic() + CANCEL_TIMEOUT
        for job in ending:
            if not job.wait(max(0.0, deadline - time.monotonic())):
                job.cancel()
        control.forget(others)

    def wait(self, timeout: float) -> bool:
        """True when all jobs have ended within ``timeout`` seconds, or were never started."""
        deadline = time.monotonic() + (min(timeout, SILENT_TIMEOUT) if is_silent(self._spark) else timeout)
        return all(job.wait(max(0.0, deadline - time.monotonic())) for job in self._jobs.values())

    def cancel(self) -> None:
        """End all jobs without asking the agents."""
        self._cancel(list(self._jobs))

    def _cancel(self, slots: Collection[int]) -> None:
        jobs = [self._jobs[slot] for slot in slots]
        for job in jobs:
            job.cancel()
        if is_silent(self._spark):
            return  # it says nothing of their end
        deadline = time.monotonic() + CANCEL_TIMEOUT
        tell("tasks of lost workers to end", deadline)
        if not all([job.wait(max(0.0, deadline - time.monotonic())) for job in jobs]):
            log.warning("a worker's Spark job did not end within %.0f s of its cancellation", CANCEL_TIMEOUT)

    def _on_end(self, tag: str, reason: str) -> None:
        slot = self._membership.arrivals.slot_of(tag)
        if slot is None or (not self._spec.hold_slots and reason == DETACHED):
            return
        if has_ended(reason) or is_stopped(self._spark):
            self._membership.fail(gone(self._spark) if has_gone(reason) else end_of(self._spark), session=True)
        elif slot in self._membership.arrivals.awaited:
            self._membership.refuse(f"The workers could not start: {with_remedy(reason)}")
        else:
            self._membership.lose(f"its Spark job ended: {reason}", slot)


class AgentJob:
    """A task with ``cores`` cores and ``gpus`` GPUs for the slot of ``config``; at its end it calls
    ``on_end(tag, reason)``.

    Each agent has a job, so that those of the others go on when it is lost. The ``tag`` is a name of the job's own,
    :attr:`AgentConfig.job`.
    """

    def __init__(
        self,
        spark: Session,
        config: AgentConfig,
        *,
        cores: int,
        gpus: int,
        on_end: Callable[[str, str], None],
    ) -> None:
        self.tag = config.job
        self._spark, self._slot, self._cores, self._on_end = spark, config.slot, cores, on_end
        self._task = AgentTask(config)
        self._profile = _resource_profile(cores, gpus)
        self._barrier = copies_long_tasks(spark)  # of a barrier stage it copies none
        self._thread = threading.Thread(target=self._run, name=f"tfos-agent-job-{config.slot}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """True when the job has ended within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel this job, and no other. Spark gives its Python workers two seconds before it kills them."""
        if not is_stopped(self._spark):
            cancel_tag(self._spark, self.tag)

    def _run(self) -> None:
        try:
            with job_tag(self._spark, self.tag, self._cores):
                reason = self._collect()
        except Exception as error:  # whatever Spark raises is the reason the agent is gone
            reason = cause_of(error)
        self._on_end(self.tag, reason)

    def _collect(self) -> str:
        if not is_connect(self._spark):
            self._spark.sparkContext.setJobDescription(f"tfos_magic: worker {self._slot}")
        rows = (
            self._spark.range(0, 1, 1, 1)
            .mapInArrow(self._task, RESULT_SCHEMA, barrier=self._barrier, profile=self._profile)
            .collect()
        )
        return "; ".join(str(row.outcome) for row in rows)


def _resource_profile(cores: int, gpus: int) -> Any:
    """Cores and GPUs by Spark's own resource scheduling; None for the session's ordinary tasks."""
    if cores <= 1 and not gpus:
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(cores)
    if gpus:
        requests = requests.resource("gpu", gpus)
    return ResourceProfileBuilder().require(requests).build
