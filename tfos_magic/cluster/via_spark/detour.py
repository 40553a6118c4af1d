"""The way round for a cluster's messages, where executors do not reach the kernel: by a relay, and by Spark alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

import zmq

from tfos_magic.cluster.membership import Membership
from tfos_magic.cluster.startup import tell_while, within
from tfos_magic.cluster.via_spark.carriers import Jobs, QuestionJobs
from tfos_magic.cluster.via_spark.tunnel import Tunnel
from tfos_magic.cluster.workers import RELAY
from tfos_magic.errors import StartTimeout
from tfos_magic.spark.session import Session, driver_address, is_connect
from tfos_magic.transport.agent_config import CONTACT_SECONDS
from tfos_magic.transport.log_once import LogOnce
from tfos_magic.transport.secret import SecretBytes
from tfos_magic.worker.relay.line import Line
from tfos_magic.worker.relay.relay import start_relay, why_unreached

log = logging.getLogger("tfos_magic.cluster")

DIRECT_SECONDS = 10.0
"""After so long without an agent it is found out whether executors reach the kernel at all."""
CLOSE_SECONDS, QUICK_SECONDS, TRY_SECONDS = 5.0, 0.4, 20.0
JOB_PATIENCE, QUESTION_PATIENCE = 2000.0, 30.0
"""Jobs may wait long for other jobs; where an executor's driver ends with the kernel, it ends by that."""


_TAKEN = (
    "Executors do not reach this kernel, so the workers' messages go by Spark: with --via spark, or "
    "%config TFOS.via = 'spark', the next start does not try."
)


def toward_kernel(wanted: str, driver: str) -> str:
    """Toward which address an executor's own is found, on which a relay listens: the ``wanted`` one of the kernel, or
    that of the ``driver`` where that is loopback, by which executors on other hosts would reach themselves."""
    with suppress(ValueError):
        return driver if ip_address(wanted).is_loopback else wanted
    return driver if wanted in ("", "localhost") else wanted


class Detour:
    """``taken`` says whether messages go by a relay: by ``via``, or because executors do not reach the kernel. A
    relay that is lost takes the agents with it; those in their places get another."""

    def __init__(self, spark: Session, membership: Membership, via: str, driver_host: str = "") -> None:
        self._spark, self._membership = spark, membership
        self.taken = via == "spark"
        self._carrier = QuestionJobs(spark) if is_connect(spark) else Jobs(spark)
        self._tunnel: Tunnel | None = None
        self._endpoint = ""
        self._driver_host = driver_host

    @property
    def patience(self) -> float:
        """Seconds without a sign of life after which agents take the kernel for lost."""
        if not self.taken:
            return CONTACT_SECONDS
        return QUESTION_PATIENCE if is_connect(self._spark) else JOB_PATIENCE

    @property
    def slots(self) -> int:
        """Slots of Spark that messages take, beside those of agents and feeding."""
        return int(self.taken and not is_connect(self._spark))

    def notices(self, asked: str) -> list[str]:
        """What to say of a detour that was not asked for."""
        return [_TAKEN] if self.taken and not asked else []

    def endpoint(self, kernel: str, deadline: float) -> str:
        """Where agents dial to reach the control socket at ``kernel``. Starts a relay where one is needed."""
        if self.taken and not (self._tunnel and self._tunnel.answers(TRY_SECONDS)):
            self.close(quick=True)
            self._start(kernel, deadline)
        return self._endpoint or kernel

    def take(self, kernel: str, deadline: float, log: LogOnce) -> bool:
        """Take the detour from now on if no agent comes for a while, and executors do not reach ``kernel``, whose
        ``log`` tells of no connection that only tried that."""
        what = "an executor to try whether it reaches this kernel"
        with within(deadline):
            while not self.taken and (left := deadline - time.monotonic()) > 0:
                if self._membership.await_first(min(DIRECT_SECONDS, left)):
                    return False
                with suppress(StartTimeout), log.muted():  # they have their slots yet to come
                    self.taken = bool(self._ask(what, partial(why_unreached, kernel), TRY_SECONDS))
                    return self.taken
        return False

    def close(self, *, quick: bool) -> None:
        """End the relay, if there is one. Where that has to be ``quick``, it may end by itself a little later."""
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None and not tunnel.close(QUICK_SECONDS if quick else CLOSE_SECONDS) and not quick:
            self._carrier.cancel()

    def _start(self, kernel: str, deadline: float) -> None:
        server_public, server_secret = zmq.curve_keypair()
        public, secret = zmq.curve_keypair()
        driver = toward_kernel(self._driver_host, driver_address(self._spark))
        work = partial(start_relay, driver, SecretBytes(server_secret), public, self.patience)
        said = self._ask("a relay for messages, on an executor", work, deadline - time.monotonic())
        self._endpoint, line = said.split()
        log.info("messages of the workers go by Spark, from a relay at %s", self._endpoint)
        keys = Line(line, server_public, public, SecretBytes(secret))
        self._tunnel = tunnel = Tunnel(self._carrier, keys, kernel, self._on_loss)
        self._membership.delay = lambda: tunnel.delay

    def _ask(self, what: str, work: Callable[[], str], seconds: float) -> str:
        return tell_while(
            what, time.monotonic() + seconds, partial(self._carrier.ask, work, seconds), self._membership.heed
        )

    def _on_loss(self, reason: str) -> None:
        self._tunnel, self._endpoint = None, ""
        self._membership.delay = lambda: 0.0
        for slot in range(self._membership.size):
            self._membership.lose(f"{RELAY}, on an executor, was lost ({reason})", slot)
