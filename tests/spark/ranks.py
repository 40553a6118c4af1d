"""The data plane of a small cluster without its control plane: what receives a feed, in the process of the tests."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from tests.feed_access import TOKEN, feed_access
from tfos_magic.columns.missing import NOTHING_MISSING, Missing
from tfos_magic.columns.schema_plan import plan_feed
from tfos_magic.columns.selection import Selection
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.driver.feed_job import feed_dataframe


class Ranks:
    """The receivers and spools of all ranks of a small cluster, in this process."""

    def __init__(self, world: int) -> None:
        self.spools = [Spool() for _ in range(world)]
        self.receivers = [FeedFlightServer("127.0.0.1", feed_access(), spool) for spool in self.spools]
        for receiver in self.receivers:
            receiver.start()

    def feed(
        self,
        df: DataFrame,
        features: list[str] | None = None,
        label: str | None = None,
        token: str = TOKEN,
        missing: Missing = NOTHING_MISSING,
        parallelism: int = 0,
    ) -> Any:
        """Feed ``df`` to all ranks and commit; gives the report and the handles by rank."""
        feed_id, plan = uuid.uuid4().hex, plan_feed(df.schema, Selection.of(features, label), missing)
        for rank, spool in enumerate(self.spools):
            spool.open(feed_id, rank, len(self.spools), plan.schema)
        endpoints = [receiver.endpoint for receiver in self.receivers]
        report = feed_dataframe(
            df,
            plan,
            feed_id=feed_id,
            endpoints=endpoints,
            access=replace(feed_access(), token=token),
            timeout=30,
            parallelism=parallelism,
        )
        rows = [spool.commit(feed_id, report.partitions, report.schema)[0] for spool in self.spools]
        assert sum(rows) == report.rows
        return report, [spool.handle(feed_id) for spool in self.spools]

    def close(self) -> None:
        for receiver, spool in zip(self.receivers, self.spools, strict=True):
            receiver.close()
            spool.close()
