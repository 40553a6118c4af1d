"""The agents of a cluster as a whole: launched in one Spark job, and after a loss launched again in another."""

from __future__ import annotations

import logging
import time

from tfos_magic.cluster.control import ControlServer
from tfos_magic.cluster.launch import AgentJob, with_remedy
from tfos_magic.cluster.roster import Roster
from tfos_magic.cluster.session import Session, is_stopped
from tfos_magic.cluster.slots import await_slots
from tfos_magic.node.config import AgentConfig

log = logging.getLogger("tfos_magic.cluster")

CANCEL_TIMEOUT = 10.0


class Agents:
    """One agent for each member of ``roster``, with ``cores`` cores and ``gpus`` GPUs of ``spark`` each."""

    def __init__(
        self,
        spark: Session,
        roster: Roster,
        *,
        cores: int,
        gpus: int,
        token: str,
        spool_dir: str | None,
        spool_gb: float | None,
    ) -> None:
        self.job: AgentJob | None = None
        self._spark, self._roster = spark, roster
        self._cores, self._gpus = cores, gpus
        self._token, self._spool_dir, self._spool_gb = token, spool_dir, spool_gb

    def await_slots(self, deadline: float, *, patient: bool = False) -> None:
        """Wait until Spark has room for them, at most until ``deadline`` (monotonic); see :func:`await_slots`."""
        await_slots(self._spark, self._roster.size, self._cores, deadline, patient=patient)

    def launch(self, control: ControlServer, deadline: float) -> None:
        """Start the job and wait for all agents to register at ``control``."""
        keys = control.keys
        config = AgentConfig(
            control.endpoint,
            keys.server_public,
            keys.public,
            keys.secret,
            self._token,
            self._spool_dir,
            self._spool_gb,
            heartbeat_timeout=self._roster.heartbeat_timeout,
        )
        self.job = AgentJob(
            self._spark, self._roster.size, cores=self._cores, gpus=self._gpus, config=config, on_end=self._on_end
        )
        control.forget(self._roster.gather(self.job.tag))
        self.job.start()
        self._roster.await_agents(deadline - time.monotonic(), control.endpoint)

    def relaunch(self, control: ControlServer, deadline: float) -> None:
        """End the job there is, some of its agents being lost, and launch another one in its place."""
        self.cancel()
        self.await_slots(deadline, patient=True)
        try:
            self.launch(control, deadline)
        except BaseException:
            if self.job is not None:
                self.job.cancel()
            raise

    def wait(self, timeout: float) -> bool:
        """True when the job has ended within ``timeout`` seconds, or was never started."""
        return self.job is None or self.job.wait(timeout)

    def cancel(self) -> None:
        """End the job without asking the agents."""
        if self.job is None:
            return
        self.job.cancel()
        if not self.job.wait(CANCEL_TIMEOUT):
            log.warning("the workers' Spark job did not end within %.0f s of its cancellation", CANCEL_TIMEOUT)

    def _on_end(self, tag: str, reason: str) -> None:
        if tag != self._roster.job:
            return
        if "SparkContext was shut down" in reason or is_stopped(self._spark):
            self._roster.fail(f"The session of the workers' Spark job has ended: {reason}. Make a new one.")
        elif self._roster.gathering:
            self._roster.fail(f"The workers could not start: {with_remedy(reason)}")
        else:
            self._roster.lose(f"their Spark job ended: {reason}")
