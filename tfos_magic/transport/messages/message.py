"""What every message is, and the only wire format: a JSON header and the bytes of a payload."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from tfos_magic.errors import MessageTooLarge, ProtocolError

MAX_HEADER_BYTES = 64 << 20
_TOLD = 500

_TYPES: dict[str, type[Message]] = {}


@dataclass(frozen=True)
class Message:
    """Base of all messages; a subclass is known to :func:`decode` by its name."""

    def __init_subclass__(cls) -> None:
        _TYPES[cls.__name__] = cls


def encode(message: Message) -> list[bytes]:
    """Give the two frames of ``message``: JSON header and payload bytes.

    Raises :class:`MessageTooLarge` where the header is longer than anybody takes.
    """
    fields = _fields_of(message)
    payload = fields.pop("payload", b"")
    header = json.dumps({"type": type(message).__name__, **fields}, separators=(",", ":"), default=_plain).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise MessageTooLarge(type(message).__name__, len(header), MAX_HEADER_BYTES)
    return [header, payload]


def decode(frames: list[bytes]) -> Message:
    """Read two frames back into a message. Raises :class:`ProtocolError` on anything unexpected."""
    if len(frames) != 2 or len(frames[0]) > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a message has two frames, this has {len(frames)}, or its header is too long", "not two frames"
        )
    try:
        return _read(json.loads(frames[0]), frames[1])
    except ProtocolError:
        raise
    except Exception as error:  # such as a RecursionError: whatever a peer sends, it must end no loop
        reason = f"unreadable message header: {type(error).__name__}"
        raise ProtocolError(reason) from None


def _read(fields: dict[str, Any], payload: bytes) -> Message:
    cls: Any = _TYPES[fields.pop("type")]
    if "payload" in _hints(cls):
        fields["payload"] = bytes(payload)
    message: Message = _made(cls, fields)
    return message


def _fields_of(part: Any) -> dict[str, Any]:
    return {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}


def _plain(part: Any) -> Any:
    """What JSON can hold of a part: of a number of NumPy's, as where a cell counts steps by them, the number."""
    return part.item() if hasattr(part, "dtype") and not part.shape else _fields_of(part)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


class _Field(NamedTuple):
    """What is known of a field: a value of the type ``plain`` needs no further look."""

    hint: Any
    plain: Any
    needed: bool


@cache
def _fields(cls: Any) -> dict[str, _Field]:
    return {each.name: _known(_hints(cls)[each.name], each) for each in dataclasses.fields(cls)}


def _known(hint: Any, spec: dataclasses.Field[Any]) -> _Field:
    kind = get_origin(hint) or hint
    nested = any(map(dataclasses.is_dataclass, (kind, *get_args(hint))))
    needed = spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
    return _Field(hint, None if nested else kind, needed)


def _made(cls: Any, fields: dict[str, Any]) -> Any:
    """Refuse missing, unknown or wrongly typed fields, so that no handler meets them."""
    known = _fields(cls)
    if unknown := fields.keys() - known.keys():
        raise ProtocolError(f"{cls.__name__} has no field {sorted(unknown)}"[:_TOLD], "an unknown field")
    for name, (hint, plain, needed) in known.items():
        if name in fields:
            if type(fields[name]) is not plain:
                fields[name] = _checked(f"{cls.__name__}.{name}", hint, fields[name])
        elif needed:
            raise ProtocolError(f"{cls.__name__} lacks its field {name!r}", "a field that is missing")
    return cls(**fields)


def _checked(name: str, hint: Any, value: Any) -> Any:
    """A value of the type that ``hint`` says: of JSON, a dataclass, or a dict of dataclasses; optional ones too."""
    parts = get_args(hint)
    if type(None) in parts:
        return None if value is None else _checked(name, parts[0], value)
    kind = get_origin(hint) or hint
    accepted: Any = dict if dataclasses.is_dataclass(kind) else (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise ProtocolError(f"{name} must be {kind.__name__}", "a field of another type")
    if dataclasses.is_dataclass(kind):
        return _made(kind, value)
    if kind is dict and len(parts) == 2 and dataclasses.is_dataclass(parts[1]):
        return {key: _checked(name, parts[1], each) for key, each in value.items()}
    return value
