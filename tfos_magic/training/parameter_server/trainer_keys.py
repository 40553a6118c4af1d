"""How the trainers of a generation know each other: CURVE keys that only they can derive."""

from __future__ import annotations

import hmac

import zmq
from zmq.utils import z85

_LABEL = b"tfos_magic parameter servers, "


def keys_of(secret: str, role: str) -> tuple[bytes, bytes]:
    """Public and secret key of ``role`` (``server`` or ``worker``) in the generation that shares ``secret``."""
    key = z85.encode(hmac.digest(secret.encode(), _LABEL + role.encode(), "sha256"))
    return zmq.curve_public(key), key
