"""The agents of a cluster as a whole: launched in a Spark job each; one that is lost is launched again in another."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from uuid import uuid4

from tfos_magic.cluster.launch import AgentJob, ship_package
from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.workers import ClusterSpec
from tfos_magic.spark.encryption import Encryption
from tfos_magic.spark.failures import has_ended, with_remedy
from tfos_magic.spark.locations import home_of
from tfos_magic.spark.session import Session, is_stopped
from tfos_magic.spark.slots import await_slots
from tfos_magic.transport.agent_config import DETACHED, AgentConfig
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Authority, worker_name

log = logging.getLogger("tfos_magic.cluster")

CANCEL_TIMEOUT = 10.0
HASH_SEED = "0"
"""Python's in trainers, one for all kernels: a run that is resumed finds sets of strings in the order they had."""


class Agents:
    """One agent for each member of ``membership``, with the cores, GPUs and spool of ``spec`` each."""

    def __init__(
        self, spark: Session, membership: Membership, spec: ClusterSpec, token: str, authority: Authority
    ) -> None:
        self._jobs: dict[int, AgentJob] = {}
        self._spark, self._membership, self._spec = spark, membership, spec
        self._token, self._authority = token, authority
        self.encryption = Encryption(False, "", spec.spool_dir, spec.spool_gb)

    @property
    def cores(self) -> int:
        """What Spark reserves for all of them."""
        return self._membership.size * self._spec.cores

    def await_slots(self, deadline: float, released: int = 0) -> None:
        """Wait until Spark has room for them, at most until ``deadline`` (monotonic); see :func:`await_slots`."""
        feeding = int(self._spec.hold_slots)
        await_slots(self._spark, self._membership.size, self._spec.cores, deadline, released=released, feeding=feeding)

    def launch(self, control: ControlServer, deadline: float) -> None:
        """Start all agents and wait for them to register at ``control``."""
        ship_package(self._spark)
        self._launch(range(self._membership.size), control, deadline)

    def _launch(self, slots: Collection[int], control: ControlServer, deadline: float) -> None:
        jobs = {slot: self._job(slot, control) for slot in slots}
        self._jobs.update(jobs)
        control.forget(self._membership.gather({slot: job.tag for slot, job in jobs.items()}))
        for job in jobs.values():
            job.start()
        self._membership.await_agents(deadline - time.monotonic(), control.endpoint)

    def _job(self, slot: int, control: ControlServer) -> AgentJob:
        job, spec = f"tfos-{uuid4().hex[:12]}", self._spec
        keys = control.issue(job)
        config = AgentConfig(
            control.endpoint,
            keys.server_public,
            keys.public,
            keys.secret,
            self._token,
            self._authority.identify(worker_name(slot)),
            self.encryption.spool_dir,
            self.encryption.spool_gb,
            job=job,
            slot=slot,
            heartbeat_timeout=self._membership.heartbeat_timeout,
            home=home_of(self._spark),
            hash_seed=os.environ.get("PYTHONHASHSEED", "").strip() or HASH_SEED,
            detached=not spec.hold_slots,
        )
        return AgentJob(self._spark, config, cores=spec.cores, gpus=spec.gpus, on_end=self._on_end)

    def relaunch(self, control: ControlServer, deadline: float) -> list[int]:
        """Launch others in the place of agents that are lost; gives their slots, which are their ranks."""
        slots = self._membership.missing()
        self._cancel(slots)
        await_slots(self._spark, len(slots), self._spec.cores, deadline, patient=True)
        try:
            self._launch(slots, control, deadline)
        except BaseException:
            for slot in slots:
                self._jobs[slot].cancel()
            self._membership.give_up(slots)
            raise
        return slots

    def wait(self, timeout: float) -> bool:
        """True when all jobs have ended within ``timeout`` seconds, or were never started."""
        deadline = time.monotonic() + timeout
        return all(job.wait(max(0.0, deadline - time.monotonic())) for job in self._jobs.values())

    def cancel(self) -> None:
        """End all jobs without asking the agents."""
        self._cancel(list(self._jobs))

    def _cancel(self, slots: Collection[int]) -> None:
        jobs = [self._jobs[slot] for slot in slots]
        for job in jobs:
            job.cancel()
        deadline = time.monotonic() + CANCEL_TIMEOUT
        if not all([job.wait(max(0.0, deadline - time.monotonic())) for job in jobs]):
            log.warning("a worker's Spark job did not end within %.0f s of its cancellation", CANCEL_TIMEOUT)

    def _on_end(self, tag: str, reason: str) -> None:
        slot = self._membership.slot_of(tag)
        if slot is None or (not self._spec.hold_slots and reason == DETACHED):
            return
        if has_ended(reason) or is_stopped(self._spark):
            self._membership.fail(f"The session of the workers' Spark jobs has ended: {reason}. Make a new one.")
        elif self._membership.awaits(slot):
            self._membership.fail(f"The workers could not start: {with_remedy(reason)}")
        else:
            self._membership.lose(f"its Spark job ended: {reason}", slot)
