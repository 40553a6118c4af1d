"""What the kernel tells an agent before they can talk."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_magic.transport.identity import Identity

HEARTBEAT_TIMEOUT, CONTACT_SECONDS = 20.0, 10.0
DETACHED = "its agent has left the Spark task"
"""The outcome of the task of an agent that goes on by itself."""


@dataclass(frozen=True)
class AgentConfig:
    """Travels in the closure of the agent's Spark job; its secrets are in no log, environment or command line.

    ``job`` names that Spark job, ``slot`` the place in the cluster that its one task fills. All feeds of an agent may
    take ``spool_gb`` (of 2**30 bytes) of the disk of ``spool_dir``; None means half of what is free. A trainer that
    gives no sign of life for ``heartbeat_timeout`` seconds is ended. ``home`` is the URL of the driver's working
    directory, which paths in cells are relative to. ``hash_seed`` is Python's in trainers, so that sets of strings have
    one order. With ``detached`` the agent leaves the task once its trainer starts. A connection that gives no sign of
    life for ``contact_timeout`` seconds is given up.
    """

    endpoint: str
    server_public: bytes = field(repr=False)
    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    feed_token: str = field(repr=False)
    identity: Identity
    spool_dir: str | None = None
    spool_gb: float | None = None
    job: str = ""
    slot: int = 0
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    home: str = ""
    hash_seed: str = "0"
    detached: bool = False
    contact_timeout: float = CONTACT_SECONDS

    @property
    def relayed(self) -> bool:
        """Whether ``endpoint`` is that of a relay, by which messages take longer."""
        return self.contact_timeout > CONTACT_SECONDS
