"""Spark Connect sessions, and whether their server answers: pyspark itself asks it again for ten minutes, silently."""

from __future__ import annotations

import atexit
import copy
import math
import socket
import time
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, WeakSet

from tfos_magic.background import begun
from tfos_magic.errors import ClusterError, RunInterrupted

Session = Any
"""A ``pyspark.sql.SparkSession``, classic or Connect; not imported here, so that importing this costs nothing."""
Value = TypeVar("Value")

AGAIN_SECONDS, PROBE_SECONDS = 0.5, 3.0
UNREACHED_SECONDS, UNANSWERED_SECONDS = 25.0, 60.0
"""A server that takes no connection is given up after the first, one that takes it and is silent after the second: it
may be very busy."""
ANSWER_SECONDS = 3.0
_GONE = ("INVALID_HANDLE.SESSION_CHANGED", "INVALID_HANDLE.SESSION_NOT_FOUND")
_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
_AGAIN = "and run the cell again; a run with --checkpoint-dir goes on with --resume"
STOPPED = f"The Spark session was stopped, and the workers' Spark jobs ended with it: make a new session, {_AGAIN}."

_silent_since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
_given_up: WeakSet[Any] = WeakSet()


def is_connect(spark: Session) -> bool:
    """True for a Spark Connect session, which has no SparkContext on this side."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def server_of(spark: Session) -> str:
    """The server of a Connect session, as HOST:PORT where that is known."""
    client = spark._client
    return str(getattr(client._builder, "endpoint", "") or client.host)


def is_silent(spark: Session) -> bool:
    """Whether the server of a Connect session did not answer when it was looked at last."""
    return spark in _silent_since


def in_time(work: Callable[[], Value], otherwise: Value, seconds: float = ANSWER_SECONDS) -> Value:
    """What ``work`` gives, or ``otherwise`` where that takes longer; it goes on then in a thread that nobody awaits."""
    made = begun(work, "tfos-asked")
    return made.result() if wait([made], seconds).done else otherwise


def check_server(spark: Session, waiting: Callable[[str, float], object]) -> None:
    """Return when the server of a session answers, at once where that is a classic one.

    ``waiting`` is told what is waited for. Raises :class:`ClusterError` where it does not answer for so long that it is
    given up, at once where it was before, and where the session is gone, and :class:`RunInterrupted` after an
    interrupt.
    """
    if not is_connect(spark):
        return
    try:
        while not (look := Look(spark)).answers:
            if look.end:
                raise ClusterError(look.end)
            waiting(look.waits, look.until)
            time.sleep(AGAIN_SECONDS)
    except KeyboardInterrupt:
        raise RunInterrupted({}, "", " before it began.") from None


def _let_go(kept: weakref.ref[Any]) -> None:
    """As the process ends, pyspark would ask a server that is silent still to end the session, for ten minutes."""
    if (spark := kept()) is not None and is_silent(spark) and _ask(spark) in (Said.NOTHING, Said.UNREACHED):
        spark._client._closed = True
        spark._client._channel.close()


class Said(Enum):
    """What came of a question to a server."""

    SOMETHING, NOTHING, UNREACHED, STOPPED, GONE = range(5)


class Look:
    """One look at the server of a Connect session.

    ``answers`` says whether it does. ``end`` says why the session is of no use any more, where that is so; else
    ``waits`` says what is waited for, ``until`` (monotonic) when at most.
    """

    def __init__(self, spark: Session) -> None:
        self.answers, self.end, self.waits, self.until, self.limit = False, "", "", math.inf, 0.0
        asked = time.monotonic()
        match _ask(spark):
            case Said.SOMETHING:
                self.answers = True
                _silent_since.pop(spark, None)
                _given_up.discard(spark)
            case Said.NOTHING | Said.UNREACHED:
                self._note_silence(spark, asked)
            case Said.STOPPED:
                self.end = STOPPED
            case Said.GONE:
                self.end = gone(spark)

    def _note_silence(self, spark: Session, asked: float) -> None:
        if spark not in _silent_since:
            atexit.register(_let_go, weakref.ref(spark))
        server, since = server_of(spark), _silent_since.setdefault(spark, asked)
        self.limit = UNANSWERED_SECONDS if _takes_connections(server) else UNREACHED_SECONDS
        self.waits, self.until = f"the Spark Connect server at {server}, which does not answer", since + self.limit
        if spark in _given_up or time.monotonic() >= self.until:
            _given_up.add(spark)
            self.end = _dead(server, time.monotonic() - since)


def _ask(spark: Session) -> Said:
    """Ask the server once for a setting; whatever it says, it answers."""
    client = spark._client
    # In the way of pyspark 4.3 to its stub stands that the client is closed, which it is also where the server is new.
    said = _ask_by(client, getattr(client, "_internal_stub", None) or client._stub)
    return _ask_anew(client) if said is Said.UNREACHED else said


def _ask_anew(client: Any) -> Said:
    """Ask over a connection of its own: that of the session, once broken, may wait two minutes to be made anew."""
    from pyspark.sql.connect.proto import SparkConnectServiceStub

    builder = copy.copy(client._builder)
    builder._channel_options = [*builder._channel_options, ("grpc.use_local_subchannel_pool", 1)]
    with builder.toChannel() as channel:
        return _ask_by(client, SparkConnectServiceStub(channel))


def _ask_by(client: Any, stub: Any) -> Said:
    import grpc

    request = client._config_request_with_metadata()
    if client._server_session_id is not None:
        request.client_observed_server_side_session_id = client._server_session_id
    request.operation.get_option.keys.append("spark.app.name")
    try:
        stub.Config(request, metadata=client._builder.metadata(), timeout=PROBE_SECONDS)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return Said.UNREACHED
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Said.NOTHING
        return Said.STOPPED if has_closed(error) else Said.GONE if has_gone(error) else Said.SOMETHING
    except ValueError:  # the channel is closed
        return Said.STOPPED
    return Said.SOMETHING


def has_gone(error: object) -> bool:
    """Whether a Connect server says that it does not know the session, or not any more."""
    return any(name in str(error) for name in _GONE)


def has_closed(error: object) -> bool:
    """Whether a Connect server says that the session was stopped."""
    return _CLOSED in str(error)


def _takes_connections(server: str) -> bool:
    place = urlsplit(f"//{server}")
    try:
        socket.create_connection((place.hostname or "", place.port or 15002), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def _make_one(server: str) -> str:
    return f"make a new session with SparkSession.builder.remote('sc://{server}').create(), {_AGAIN}."


def _dead(server: str, seconds: float) -> str:
    return (
        f"The Spark Connect server at {server} has not answered for {seconds:.0f} s, and the session and the workers "
        f"are lost with it: start it, or see that this machine reaches it; then {_make_one(server)}"
    )


def gone(spark: Session) -> str:
    server = server_of(spark)
    return (
        f"The Spark Connect server at {server} does not know this session any more, as after a start anew or a long "
        f"time without a call, and the workers are lost with it: {_make_one(server)}"
    )
