"""What a session's settings say of encryption, which the cluster on it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfos_magic.errors import ClusterError
from tfos_magic.spark.session import Session

Encrypt = bool | Literal["auto"]

NETWORK_SETTINGS = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.authenticate",
)
"""Any of them says that somebody may listen or meddle; the last one asks for authenticated messages at least."""
DISK_SETTING = "spark.io.encryption.enabled"
MEMORY = "/dev/shm"
MEMORY_GB = 1.0
"""Of memory, fed rows may take so much by default where they may not lie on disks; more is streamed."""


@dataclass(frozen=True)
class Encryption:
    """Whether connections between hosts are encrypted, and ``why``; where rows lie, and how much room they have."""

    network: bool
    why: str
    spool_dir: str | None = None
    spool_gb: float | None = None


def encryption_of(spark: Session, encrypt: Encrypt, spool_dir: str | None, spool_gb: float | None) -> Encryption:
    """Decide from what the cluster was asked for and from what the session asks for.

    Rows are written as they are, so with ``spark.io.encryption.enabled`` they stay in memory. Raises
    :class:`ClusterError` where ``spool_dir`` names a disk all the same.
    """
    asking = next((name for name in NETWORK_SETTINGS if _is_on(spark, name)), "")
    network, why = (bool(asking), asking) if encrypt == "auto" else (bool(encrypt), f"encrypt={encrypt}")
    if _is_on(spark, DISK_SETTING):
        if spool_dir is not None:
            raise ClusterError(
                f"{DISK_SETTING} asks that Spark's data on disks are encrypted, and fed rows in {spool_dir} would not "
                "be: leave spool_dir out, and they stay in memory, or are streamed where they are larger than spool_gb."
            )
        return Encryption(network, why, MEMORY, MEMORY_GB if spool_gb is None else spool_gb)
    return Encryption(network, why, spool_dir, spool_gb)


def hides_tasks(spark: Session) -> bool:
    """Whether Spark encrypts its own RPC, by which tasks travel and the keys in them."""
    return any(_is_on(spark, name) for name in NETWORK_SETTINGS if name != "spark.authenticate")


def _is_on(spark: Session, name: str) -> bool:
    return str(spark.conf.get(name, "false")).lower() == "true"
