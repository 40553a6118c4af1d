"""The line between kernel and relay: pieces of connections, brought and fetched by whoever Spark runs for that."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import zmq

from tfos_magic.transport.curve import secure_client, unbounded
from tfos_magic.transport.frames import cut, joined

WAIT_SECONDS, BATCH_SECONDS = 0.5, 0.05
"""So long a relay waits for something to tell, and then for more of it."""
ANSWER_SECONDS = 5.0
MOST_BYTES = 4 << 20
"""Of what waits to be fetched or brought. Beyond that the connections themselves wait."""
END = 0
"""The number by which the kernel ends the relay."""

Piece = tuple[int, bytes]
"""The number of a connection and bytes of it. Without bytes it begins, where it is new, and ends otherwise."""
_HEAD = struct.Struct("!QI")


def pack(pieces: Iterable[Piece]) -> bytes:
    """The pieces as one."""
    return b"".join(part for number, data in pieces for part in (_HEAD.pack(number, len(data)), data))


def unpack(packed: bytes) -> list[Piece]:
    """The pieces that were packed."""
    pieces, at = [], 0
    while at < len(packed):
        number, size = _HEAD.unpack_from(packed, at)
        at += _HEAD.size + size
        pieces.append((number, packed[at - size : at]))
    return pieces


@dataclass(frozen=True)
class Line:
    """Where a relay is asked, its public key, and the keys of the one kernel that it listens to."""

    endpoint: str
    server_public: bytes
    public: bytes
    secret: bytes = field(repr=False)


def exchange(line: Line, number: int, packed: bytes) -> bytes | None:
    """Bring pieces to the relay and fetch those that it has by then, or soon; None where it does not answer.

    Whoever does the same again, for Spark may run a task twice, changes nothing, and gets the same: exchanges are
    numbered, from 1 on.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as relay:
        secure_client(relay, line.server_public, line.public, line.secret)
        unbounded(relay)
        relay.connect(line.endpoint)
        relay.send_multipart([number.to_bytes(8, "big"), *cut([packed])])
        if not relay.poll(int((WAIT_SECONDS + ANSWER_SECONDS) * 1000)):
            return None
        answer: bytes = joined(relay.recv_multipart())[0]
        return answer
