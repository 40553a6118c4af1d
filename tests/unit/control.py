"""A control server and who speaks to it, for tests of either side and of what lies between."""

from __future__ import annotations

import queue

from tfos_magic.transport.agent_config import AgentConfig
from tfos_magic.transport.control_server import ControlServer
from tfos_magic.transport.identity import Identity
from tfos_magic.transport.messages import Message

Inbox = queue.SimpleQueue[tuple[bytes, Message]]
"""What the server's handler was given."""


def config_of(server: ControlServer, endpoint: str = "") -> AgentConfig:
    """That of an agent, which dials ``endpoint`` instead of the server where that is given."""
    keys = server.issue("job")
    identity = Identity("worker-0.tfos", "", "", "")
    return AgentConfig(
        endpoint or server.endpoint, keys.server_public, keys.public, keys.secret, "token", identity, job="job"
    )
