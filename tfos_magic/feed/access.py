"""How the agents' doors for rows are reached: on their own host by a socket in a private folder, else by mutual TLS."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field

from pyarrow import flight

from tfos_magic.this_host import host_id
from tfos_magic.transport.identity import Identity
from tfos_magic.transport.messages import FeedEndpoint


@dataclass(frozen=True)
class FeedAccess:
    """What opens these doors: the cluster's ``token``, and the ``identity`` of who comes, or of who lets in."""

    token: str = field(repr=False)
    identity: Identity

    def connect(self, endpoint: FeedEndpoint) -> flight.FlightClient:
        """Give a client for the agent at ``endpoint``; its first call raises where nobody answers there."""
        if is_here(endpoint):
            return flight.connect(socket_uri(endpoint.socket))
        identity = self.identity
        return flight.connect(
            endpoint.uri,
            tls_root_certs=identity.authority.encode(),
            cert_chain=identity.certificate.encode(),
            private_key=identity.key.encode(),
            override_hostname=endpoint.name,
        )

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """What a call takes; ``timeout`` in seconds."""
        return flight.FlightCallOptions(timeout=timeout, headers=bearer(self.token))


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    """The headers of a call by ``token``."""
    return [(b"authorization", b"Bearer " + token.encode())]


def socket_uri(path: str) -> str:
    return f"grpc+unix://{path}"


def is_here(endpoint: FeedEndpoint) -> bool:
    """Whether its socket is of this host and this user: in another container, or as another user, it is not there."""
    if not endpoint.socket or endpoint.host_id != host_id():
        return False
    with suppress(OSError):
        status = os.stat(endpoint.socket)
        return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()
    return False
