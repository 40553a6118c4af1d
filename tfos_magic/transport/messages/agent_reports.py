"""What agents tell the kernel of themselves and of their trainers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfos_magic.transport.messages.feeds import FeedEndpoint
from tfos_magic.transport.messages.message import Message


@dataclass(frozen=True)
class Register(Message):
    """An agent is up. ``slot`` is its place in the cluster, ``tensor_port`` the port it holds for TensorFlow,
    ``executor`` the id of its Spark executor, where it has one.

    ``job`` is the name of the Spark job it belongs to: after the loss of an agent all are replaced by a new job's.
    """

    slot: int
    host: str
    pid: int
    tensor_port: int
    feed: FeedEndpoint
    job: str = ""
    executor: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat(Message):
    """Sent each second by every agent. Sizes in bytes; ``feeds`` maps an open feed to its rows so far, and
    ``trainer_silence`` are the seconds since its trainer, which has TensorFlow loaded, gave its last sign of life."""

    trainer_rss: int = 0
    spool_bytes: int = 0
    feeds: dict[str, int] = field(default_factory=dict)
    trainer_silence: float = 0.0


@dataclass(frozen=True)
class TrainerExited(Message):
    """The trainer process ended without being asked to. ``signal`` is 0 for an ordinary exit.

    ``reason`` is the agent's, where it ended the trainer itself, such as ``did not answer for 20 s``.
    """

    generation: int
    rank: int
    exit_code: int
    signal: int
    output: str
    reason: str = ""


@dataclass(frozen=True)
class Reconnected(Message):
    """The connection is there, for the first time or again: what has not arrived is to be sent again."""


@dataclass(frozen=True)
class AgentEnded(Message):
    """The agent ends without having been asked to, such as on a signal; its last message."""

    reason: str


@dataclass(frozen=True)
class AgentFailed(Message):
    """The agent cannot go on; it ends after this message."""

    host: str
    reason: str
