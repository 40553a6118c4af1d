"""The receiver's door: who is let in, and that rubbish at the port harms nobody."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.feed_access import TOKEN, feed_access
from tfos_magic.columns.columns import Column, FeedPlan
from tfos_magic.errors import FeedError
from tfos_magic.feed.agent import uncalled
from tfos_magic.feed.agent.flight_messages import PutCommand
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task.feed_partition import FeedJob, send_partition
from tfos_magic.transport.log_once import LogOnce

pytestmark = pytest.mark.slow

PLAN = FeedPlan((Column("x", "scalar", "int64"),))
BEARER = f"Bearer {TOKEN}".encode()
COMMAND = PutCommand("f", 0, 1).encode()


@pytest.fixture
def spool() -> Iterator[Spool]:
    made = Spool()
    made.open("f", 0, 1, PLAN.schema)
    yield made
    made.close()


@pytest.fixture
def receiver(spool: Spool) -> Iterator[FeedFlightServer]:
    made = FeedFlightServer("127.0.0.1", feed_access(), spool)
    made.start()
    yield made
    made.close()


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def put(
    receiver: FeedFlightServer, *authorization: bytes, command: bytes = COMMAND, timeout: float = 10, times: int = 1
) -> None:
    """Send a row ``times`` over in one stream, the way any Flight client would."""
    headers = [(b"authorization", value) for value in authorization]
    options = flight.FlightCallOptions(timeout=timeout, headers=headers)
    with feed_access().connect(receiver.endpoint) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), batch().schema, options=options)
        with writer:
            for _ in range(times):
                writer.write_batch(batch(1))


def serves(receiver: FeedFlightServer, attempt: int) -> bool:
    job = FeedJob("f", PLAN, (receiver.endpoint,), feed_access(), timeout=10)
    return send_partition(job, 0, attempt, [batch(1, 2, 3)]).rows == 3


@pytest.mark.parametrize("authorization", [[], [b"Bearer wrong"], [b"the-right-token"], [b"Bearer the-right-token2"]])
def test_a_caller_without_the_token_is_refused_and_nothing_is_stored(
    receiver: FeedFlightServer, spool: Spool, authorization: list[bytes]
) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="token is missing or wrong"):
        put(receiver, *authorization)
    assert spool.rows() == {"f": 0}
    assert spool.bytes == 0
    assert serves(receiver, 2)


def test_refusals_do_not_fill_the_log_nor_show_a_token(
    receiver: FeedFlightServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="tfos_magic.worker"):
        for _ in range(9):
            with pytest.raises(flight.FlightUnauthenticatedError):
                put(receiver, b"Bearer guess")
    assert [record.args for record in caplog.records] == [("DO_PUT", count) for count in (1, 2, 4, 8)]
    assert "guess" not in caplog.text
    assert TOKEN not in caplog.text


def test_other_calls_need_the_token_too(receiver: FeedFlightServer) -> None:
    with feed_access().connect(receiver.endpoint) as client, pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("fail-feed", b"{}"), flight.FlightCallOptions(timeout=10)))


def test_random_bytes_and_half_open_connections_leave_it_serving(receiver: FeedFlightServer) -> None:
    address = urlsplit(receiver.endpoint.uri)
    peers = [socket.create_connection((address.hostname, address.port), timeout=10) for _ in range(20)]
    for peer in peers[:10]:
        peer.sendall(os.urandom(4096))
    peers[0].close()
    assert serves(receiver, 1)
    for peer in peers[1:]:
        peer.close()
    assert serves(receiver, 2)


def test_a_connection_over_which_nobody_calls_is_ended_and_that_of_a_caller_stays(
    receiver: FeedFlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncalled, "CALL_SECONDS", 0.5)
    address = urlsplit(receiver.endpoint.uri)
    elsewhere = replace(receiver.endpoint, host_id="another", socket="/nowhere")
    action = flight.Action("nothing", b"")
    with (
        feed_access().connect(elsewhere) as caller,
        socket.create_connection((address.hostname, address.port), timeout=10) as stranger,
    ):
        for _ in range(2):
            with pytest.raises(flight.FlightServerError, match="there is no action"):
                list(caller.do_action(action, feed_access().options(10)))
            while stranger.recv(1 << 16):  # gRPC greets at once
                pass
        assert [peer for peer, _ in uncalled._connections(address.port or 0)]


def test_a_stream_that_breaks_off_keeps_the_receiver_serving_and_is_never_committed(
    receiver: FeedFlightServer, spool: Spool
) -> None:
    with pytest.raises(flight.FlightTimedOutError):
        put(receiver, BEARER, timeout=0.5, times=10_000_000)
    assert spool.rows()["f"] > 0
    assert serves(receiver, 2)
    assert spool.commit("f", [(0, 2, 3)])[0] == 3


@pytest.mark.parametrize("command", [b"", b"\xff\x00", b"[]", b'{"feed_id": "f"}'])
def test_a_stream_without_a_proper_command_is_refused(receiver: FeedFlightServer, command: bytes) -> None:
    with pytest.raises(flight.FlightServerError, match="not a feed of tfos_magic"):
        put(receiver, BEARER, command=command)


def test_it_listens_on_its_own_address_alone(receiver: FeedFlightServer) -> None:
    address = urlsplit(receiver.endpoint.uri)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", address.port), timeout=5)


def test_a_closed_receiver_listens_no_more_and_has_no_address(spool: Spool) -> None:
    receiver = FeedFlightServer("127.0.0.1", feed_access(), spool)
    with pytest.raises(FeedError, match="not running"):
        _ = receiver.endpoint
    receiver.start()
    address = urlsplit(receiver.endpoint.uri)
    receiver.close()
    receiver.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port), timeout=5)


def test_a_host_that_is_not_this_machine_is_named(spool: Spool) -> None:
    with pytest.raises(FeedError, match=r"192\.0\.2\.77"):
        FeedFlightServer("192.0.2.77", feed_access(), spool).start()


def test_a_feeder_on_another_host_comes_by_tls(receiver: FeedFlightServer, spool: Spool) -> None:
    elsewhere = replace(receiver.endpoint, host_id="another", socket="/nowhere")
    job = FeedJob("f", PLAN, (elsewhere,), feed_access(), timeout=10)
    assert send_partition(job, 0, 1, [batch(1, 2, 3)]).rows == 3
    assert spool.commit("f", [(0, 1, 3)])[0] == 3


def test_a_long_folder_for_temporary_files_is_no_hindrance(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    receiver = FeedFlightServer("127.0.0.1", feed_access(), spool)
    receiver.start()
    folder = Path(receiver.endpoint.socket).parent
    assert serves(receiver, 1)
    receiver.close()
    assert not folder.exists()


def test_of_connections_that_make_no_call_few_are_kept_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncalled, "MOST", 2)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = server.getsockname()
        watch = uncalled.UncalledConnections(address[1], LogOnce(logging.getLogger("tfos_magic.test")))
        stack.callback(watch.close)
        accepted = []
        clients = []
        for _ in range(2):
            for _ in range(2):
                clients.append(stack.enter_context(socket.create_connection(address)))
                accepted.append(stack.enter_context(server.accept()[0]))
            time.sleep(3 * uncalled.LOOK_SECONDS)
        for client in clients:
            client.settimeout(0.2)
        assert [client.recv(1) for client in clients[:2]] == [b"", b""]
        for client in clients[2:]:
            with pytest.raises(TimeoutError):
                client.recv(1)
