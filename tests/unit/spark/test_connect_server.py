"""Whether a Connect server answers is known in time. A gRPC server stands for Spark's; the client is the real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.proto import ConfigResponse, SparkConnectServiceServicer
from pyspark.sql.connect.proto.base_pb2_grpc import add_SparkConnectServiceServicer_to_server
from pyspark.sql.connect.session import SparkSession

from tfos_magic.errors import ClusterError, RunInterrupted
from tfos_magic.spark.connect import reachability
from tfos_magic.spark.connect.reachability import STOPPED, Look, check_server, is_silent
from tfos_magic.spark.connect.watch import ServerWatch
from tfos_magic.spark.session import cancel_tag, master_of

pytestmark = pytest.mark.slow

SECONDS = 20.0


class Service(SparkConnectServiceServicer):
    """Answers questions about settings, or refuses them as a new server does those of an old session."""

    def __init__(self, refusal: str = "") -> None:
        self._refusal = refusal

    def Config(self, request: Any, context: grpc.ServicerContext) -> ConfigResponse:
        if self._refusal:
            context.abort(grpc.StatusCode.INTERNAL, self._refusal)
        return ConfigResponse(session_id=request.session_id)


@contextmanager
def serving(port: int, refusal: str = "") -> Iterator[None]:
    with ThreadPoolExecutor(2) as pool:
        made = grpc.server(pool)
        add_SparkConnectServiceServicer_to_server(Service(refusal), made)
        assert made.add_insecure_port(f"127.0.0.1:{port}") == port
        made.start()
        try:
            yield
        finally:
            made.stop(None).wait()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def spark(port: int) -> Iterator[Any]:
    made = SparkSession(connection=f"sc://127.0.0.1:{port}")
    yield made
    made._client._closed = True  # else pyspark asks the server to end the session, as the process ends
    made._client._channel.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def hear(told: list[str]) -> Callable[[str, float], None]:
    return lambda what, until: told.append(what)


def test_a_server_that_takes_no_connection_is_given_up_after_a_limit_and_then_at_once(
    spark: Any, port: int, told: list[str], hear: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "UNREACHED_SECONDS", 1.5)
    began = time.monotonic()
    with pytest.raises(
        ClusterError, match=f"The Spark Connect server at 127.0.0.1:{port} has not answered for"
    ) as caught:
        check_server(spark, hear)
    assert 1.5 <= time.monotonic() - began < SECONDS
    assert set(told) == {f"the Spark Connect server at 127.0.0.1:{port}, which does not answer"}
    assert f"remote('sc://127.0.0.1:{port}').create()" in str(caught.value)
    assert "--resume" in str(caught.value)
    told.clear()
    with pytest.raises(ClusterError):
        check_server(spark, hear)
    assert not told


def test_an_interrupt_of_that_wait_is_one_of_a_run_that_has_not_begun(spark: Any) -> None:
    def interrupt(what: str, until: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match=r"the run was stopped before it began\.$"):
        check_server(spark, interrupt)


def test_a_server_that_takes_connections_and_says_nothing_has_more_time(
    spark: Any, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", port)):
        look = Look(spark)
    assert not look.answers
    assert look.limit == reachability.UNANSWERED_SECONDS > reachability.UNREACHED_SECONDS


@pytest.mark.soak
def test_a_server_that_answers_again_is_heard_at_once_though_the_session_waits_before_it_connects_anew(
    spark: Any, port: int, told: list[str], hear: Callable[[str, float], None]
) -> None:
    began = time.monotonic()
    while time.monotonic() - began < 5:  # by which the session's own connection waits for longer and longer
        assert not Look(spark).answers
        time.sleep(0.2)
    with serving(port):
        assert Look(spark).answers
        assert not is_silent(spark)
        check_server(spark, hear)
    assert not told


def test_a_session_that_a_new_server_does_not_know_and_one_that_was_stopped_are_told_apart(
    spark: Any, port: int
) -> None:
    with serving(port, "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."):
        assert "does not know this session any more" in Look(spark).end
    with serving(port, "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."):
        assert Look(spark).end == STOPPED
    with serving(port, "[CONFIG_NOT_AVAILABLE] no such setting"):
        assert Look(spark).answers, "whatever it says, it answers"
    spark._client.close()
    assert Look(spark).end == STOPPED


def test_nothing_waits_for_a_server_that_is_known_to_be_silent(spark: Any) -> None:
    assert not Look(spark).answers
    began = time.monotonic()
    assert not cancel_tag(spark, "tfos-none")
    assert master_of(spark) == "connect"
    assert time.monotonic() - began < 1.0


def test_a_watch_tells_of_silence_and_of_the_end_once(
    spark: Any, port: int, told: list[str], hear: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "UNREACHED_SECONDS", 2.0)
    ends: list[str] = []
    over = threading.Event()
    watch = ServerWatch(spark, lambda reason: (ends.append(reason), over.set()))
    with serving(port):
        watch.start()
        watch.settle(hear)
        assert not watch.waits
        assert not told
    watch.settle(hear)
    assert over.wait(SECONDS)
    assert len(ends) == 1
    assert "has not answered" in ends[0]
    assert any("which does not answer" in what for what in told)
    assert f"127.0.0.1:{port}, which does not answer, and is given up after 2 s" in watch.waits
    watch.close()


def test_a_watch_ends_when_it_is_closed_and_nobody_waits_for_it_then(spark: Any, port: int) -> None:
    watch = ServerWatch(spark, lambda reason: None)
    with serving(port):
        watch.start()
        watch.close()
        watch.settle(lambda what, until: None)
