"""The functions of the Spark jobs that start a relay, and that carry what goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tfos_magic.errors import ClusterError
from tfos_magic.spark.liveness import ExecutorLiveness
from tfos_magic.worker.detached_agent import detach
from tfos_magic.worker.host import find_place
from tfos_magic.worker.probe import tried
from tfos_magic.worker.relay.line import Line, exchange

PLACE_SCHEMA, ANSWER_SCHEMA = "place string", "answer binary"


@dataclass(frozen=True)
class Reached:
    """Try whether this executor reaches the kernel's ``endpoint``; the row says why not."""

    endpoint: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"place": [", ".join(tried(self.endpoint.removeprefix("tcp://")))]})


@dataclass(frozen=True)
class StartRelay:
    """Start a relay with the key ``secret`` for the kernel that has the key ``public``; the row names its endpoints.

    ``endpoint`` is the kernel's own, which executors need not reach.
    """

    endpoint: str
    secret: bytes = field(repr=False)
    public: bytes
    patience: float

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            pass
        host = find_place(TaskContext.get(), self.endpoint, 0).host
        with open(detach(lambda executor, told: self._live(host, executor, told)), encoding="utf-8") as said:
            place = said.read()
        if not place:
            raise ClusterError(f"the relay on {host} has ended, as Spark's log there says")
        yield pa.RecordBatch.from_pydict({"place": [place]})

    def _live(self, host: str, executor: ExecutorLiveness, told: int) -> None:
        from tfos_magic.worker.relay.relay import Relay

        relay = Relay(host, self.secret, self.public, self.patience, executor)
        with open(told, "w", encoding="utf-8") as said:
            said.write(f"{relay.endpoint} {relay.line}")
        relay.serve()


@dataclass(frozen=True)
class Exchange:
    """Do one exchange with a relay; the row has what it gave, or nothing."""

    line: Line
    number: int
    packed: bytes = field(repr=False)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        answer = exchange(self.line, self.number, self.packed)
        yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], ["answer"])
