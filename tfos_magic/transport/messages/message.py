"""What every message is, and the only wire format: a JSON header and the bytes of a payload."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from tfos_magic.errors import ProtocolError

MAX_HEADER_BYTES = 64 << 20

_TYPES: dict[str, type[Message]] = {}


@dataclass(frozen=True)
class Message:
    """Base of all messages; a subclass is known to :func:`decode` by its name."""

    def __init_subclass__(cls) -> None:
        _TYPES[cls.__name__] = cls


def encode(message: Message) -> list[bytes]:
    """Give the two frames of ``message``: JSON header and payload bytes."""
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    payload = fields.pop("payload", b"")
    header = json.dumps({"type": type(message).__name__, **fields}, separators=(",", ":"))
    return [header.encode(), payload]


def decode(frames: list[bytes]) -> Message:
    """Read two frames back into a message. Raises :class:`ProtocolError` on anything unexpected."""
    if len(frames) != 2 or len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(f"a message has two frames, this has {len(frames)}, or its header is too long")
    try:
        fields = json.loads(frames[0])
        cls = _TYPES[fields.pop("type")]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ProtocolError(f"unreadable message header: {type(error).__name__}") from None
    if any(f.name == "payload" for f in dataclasses.fields(cls)):
        fields["payload"] = bytes(frames[1])
    _check_fields(cls, fields)
    return cls(**fields)


def _check_fields(cls: type[Message], fields: dict[str, Any]) -> None:
    """Refuse missing, unknown or wrongly typed fields, so that no handler meets them."""
    known = {f.name: f for f in dataclasses.fields(cls)}
    if unknown := fields.keys() - known.keys():
        raise ProtocolError(f"{cls.__name__} has no field {sorted(unknown)}")
    for name, spec in known.items():
        if name not in fields:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise ProtocolError(f"{cls.__name__} lacks its field {name!r}")
            continue
        base = str(spec.type).split("[")[0]
        accepted = _JSON_TYPES[base]
        if not isinstance(fields[name], accepted) or (base != "bool" and isinstance(fields[name], bool)):
            raise ProtocolError(f"{cls.__name__}.{name} must be {base}")


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "bytes": (bytes,),
    "list": (list,),
    "dict": (dict,),
}
