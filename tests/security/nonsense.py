"""Messages with something wrong, the same ones each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from tfos_magic.transport import messages
from tfos_magic.transport.messages import Message, encode

SEED, MANY = 20, 10_000
NESTED = b"[" * 200_000
VALUES: list[Any] = [None, True, -1, 10**30, 1e308, float("nan"), "", "\ud800", "x" * 1000, [], [[]], {}, {"a": {}}]


def _value_of(hint: Any) -> Any:
    """Some value of a field's type."""
    parts, kind = get_args(hint), get_origin(hint) or hint
    if type(None) in parts:
        return _value_of(parts[0])
    if is_dataclass(kind):
        return filled(kind)
    if kind is dict and len(parts) == 2 and is_dataclass(parts[1]):
        return {"a": filled(parts[1])}
    samples: Mapping[Any, Any] = {str: "some", int: 3, float: 0.5, bool: True, bytes: b"\x80\x05", list: [], dict: {}}
    return samples[kind]


def filled(cls: Any) -> Any:
    """A message of a class, with some value in each field."""
    hints = get_type_hints(cls)
    if cls is messages.StrategyOptions:
        return cls()
    return cls(**{each.name: _value_of(hints[each.name]) for each in fields(cls)})


KINDS = [
    cls
    for name in messages.__all__
    if isinstance(cls := getattr(messages, name), type) and issubclass(cls, Message) and cls is not Message
]


def mutated(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """A message with something wrong: bytes, values, fields, their number, its frames."""
    header, payload = frames
    match chance.randrange(8):
        case 0:
            at = chance.randrange(len(header))
            return [header[:at] + chance.randbytes(chance.randrange(1, 9)) + header[at + 1 :], payload]
        case 1:
            return [header[: chance.randrange(len(header))], payload]
        case 2:
            return [header, payload, chance.randbytes(5)][: chance.choice([0, 1, 3])]
        case 3:
            return [NESTED[: chance.choice([10, 5_000, 200_000])], payload]
        case 4:
            said = json.loads(header)
            said[chance.choice([*said, f"x{chance.random()}"])] = chance.choice(VALUES)
            return [json.dumps(said).encode(), chance.randbytes(chance.randrange(2000))]
        case 5:
            said = json.loads(header)
            said.pop(chance.choice(list(said)))
            return [json.dumps(said).encode(), payload]
        case 6:
            return [json.dumps(chance.choice(VALUES)).encode(), payload]
    return [chance.randbytes(chance.randrange(200)), payload]


def nonsense() -> Iterator[list[bytes]]:
    """``MANY`` messages of all kinds, each mutated."""
    chance = random.Random(SEED)
    whole = [encode(filled(kind)) for kind in KINDS]
    for number in range(MANY):
        yield mutated(chance, whole[number % len(whole)])
