"""The function of an agent's Spark job. Light to import: it must load, and complain, where much is missing."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

from tfos_magic.spark.locations import HOME
from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.worker.host import HostSlot, find_place, missing_packages

RESULT_SCHEMA = "slot bigint, outcome string"


class AgentTask:
    """Run an agent in the slot of ``config`` until it ends; the result row says why it ended."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            pass
        os.environ[HOME] = self._config.home  # for the trainer, which gets this environment
        place = find_place(TaskContext.get(), self._config.endpoint, self._config.slot)
        missing = missing_packages()
        if not missing:
            outcome = self._run(place)
        else:
            outcome = missing
            if importlib.util.find_spec("zmq") and importlib.util.find_spec("psutil"):
                from tfos_magic.transport.control_client import report_failure

                report_failure(self._config, place.host, missing)
        yield pa.RecordBatch.from_pydict({"slot": [place.slot], "outcome": [outcome]})

    def _run(self, place: HostSlot) -> str:
        if self._config.detached:
            from tfos_magic.worker.detached_agent import detach_agent

            return detach_agent(self._config, place)
        from tfos_magic.worker.agent import Agent

        return Agent(self._config, place).run()
