"""Who a process of a cluster is, to the others: a certificate of the cluster's own authority, and TLS by it.

The authority is the kernel: its key is made with the cluster, in memory, and gone with it. Both ends of a connection
show a certificate, and whoever connects expects a name, so that an executor that is taken over stands for itself alone.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import Any

FEEDER = "feeder.tfos"
_SKEW, _VALID = datetime.timedelta(days=7), datetime.timedelta(days=3650)
"""Clocks of hosts may differ; a certificate is of use as long as the processes that check it live."""


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


class Authority:
    """Signs certificates for agents and feeding tasks. Its key never leaves this object."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._curve = ec.SECP256R1()
        self._key = ec.generate_private_key(self._curve)
        self._certificate = self._signed("tfos_magic", self._key.public_key(), authority=True)

    def __repr__(self) -> str:
        return "Authority(…)"

    def identify(self, name: str) -> Identity:
        """Make a key pair and a certificate for ``name``, which takes a tenth of a millisecond."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(self._curve)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._signed(name, key.public_key(), authority=False)
        return Identity(name, _pem(certificate), private.decode(), _pem(self._certificate))

    def _signed(self, name: str, public: Any, authority: bool) -> Any:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named("tfos_magic"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(authority, 0 if authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    return str(certificate.public_bytes(serialization.Encoding.PEM).decode())
