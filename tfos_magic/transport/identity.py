"""Who a process of a cluster is, to the others: a certificate of the cluster's own authority, and TLS by it.

The authority is the kernel (:mod:`tfos_magic.transport.authority`). Both ends of a connection show a certificate, and
whoever connects expects a name, so that an executor that is taken over stands for itself alone.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field

FEEDER = "feeder.tfos"


def worker_name(slot: int) -> str:
    """The name in the certificate of the agent in a slot of the cluster, and of its trainers."""
    return f"worker-{slot}.tfos"


@dataclass(frozen=True)
class Identity:
    """A certificate for ``name``, its private key, and the certificate of the authority that signed it, all as PEM."""

    name: str
    certificate: str = field(repr=False)
    key: str = field(repr=False)
    authority: str = field(repr=False)


def tls_context(identity: Identity, server_side: bool) -> ssl.SSLContext:
    """TLS 1.3 alone, by ``identity``, with peers alone who have one of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority)
    # The library reads keys from files only: this one is this user's, and has no name once it is read.
    with tempfile.NamedTemporaryFile("w", prefix="tfos-identity-") as file:
        file.write(identity.certificate + identity.key)
        file.flush()
        context.load_cert_chain(file.name)
    if server_side:
        context.num_tickets = 0  # no connection is resumed
    return context
