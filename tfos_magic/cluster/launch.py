"""The Spark job whose one task is an agent: started in a thread of its own, it lasts as long as the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tfos_magic.spark.failures import cause_of
from tfos_magic.spark.session import Session, cancel_tag, is_connect, is_stopped, job_tag
from tfos_magic.spark.shipping import ship_package as ship_package
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.worker.agent_task import RESULT_SCHEMA, AgentTask


class AgentJob:
    """A task with ``cores`` cores and ``gpus`` GPUs for the slot of ``config``; at its end it calls
    ``on_end(tag, reason)``.

    Each agent has a job, so that those of the others go on when it is lost. The ``tag`` is a name of the job's own,
    :attr:`AgentConfig.job`. It is a barrier job, whose tasks know the address of their host.
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
        self._spark, self._slot, self._on_end = spark, config.slot, on_end
        self._task = AgentTask(config)
        self._profile = _resource_profile(cores, gpus)
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
            with job_tag(self._spark, self.tag):
                reason = self._collect()
        except Exception as error:  # whatever Spark raises is the reason the agent is gone
            reason = cause_of(error)
        self._on_end(self.tag, reason)

    def _collect(self) -> str:
        if not is_connect(self._spark):
            self._spark.sparkContext.setJobDescription(f"tfos_magic: worker {self._slot}")
        rows = (
            self._spark.range(0, 1, 1, 1)
            .mapInArrow(self._task, RESULT_SCHEMA, barrier=True, profile=self._profile)
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
