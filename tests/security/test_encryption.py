"""What crosses hosts: encrypted where the session asks for it, with the numbers it has without, and never changed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zmq

from tests.feed_access import feed_access
from tests.security.conftest import CONTROL, Served, answered_by_control, dial
from tests.security.relay import Meddler
from tfos_magic.cluster.preflight import Finding, _encryption
from tfos_magic.cluster.workers import ClusterSpec
from tfos_magic.columns.columns import Column, FeedPlan
from tfos_magic.errors import ClusterError, FeedError
from tfos_magic.feed.agent.flight_server import FeedFlightServer
from tfos_magic.feed.agent.spool import Spool
from tfos_magic.feed.task.feed_partition import FeedJob, send_partition
from tfos_magic.spark.encryption import MEMORY, encryption_of
from tfos_magic.training.allreduce import PeerLost
from tfos_magic.training.allreduce.courses import Swap
from tfos_magic.training.allreduce.group import link
from tfos_magic.training.allreduce.handshake import listen
from tfos_magic.training.allreduce.host_links import Links
from tfos_magic.transport.control_server import AgentKeys
from tfos_magic.transport.identity import Authority, worker_name
from tfos_magic.transport.messages import Heartbeat, encode
from tfos_magic.transport.redelivery import Redelivery
from tfos_magic.transport.tls import TlsPeers

SECRET, SECONDS = b"of the group", 20.0
VALUES = np.arange(1 << 20, dtype=np.float32)


def _identities(count: int = 2) -> list[TlsPeers]:
    authority, names = Authority(), [worker_name(slot) for slot in range(count)]
    return [TlsPeers(authority.identify(name), names) for name in names]


@contextmanager
def _linked(tls: list[Any]) -> Iterator[tuple[list[Links], Meddler]]:
    """Two ends as on two hosts, the second of which connects to the first through a meddler."""
    listener = listen("127.0.0.1:0")
    meddler = Meddler(listener.getsockname())
    addresses = [f"127.0.0.1:{meddler.port}", "127.0.0.1:1"]
    ends: list[Any] = [None, None]

    def join(place: int) -> None:
        try:
            ends[place] = link(place, [0, 1], addresses, listener, SECRET, SECONDS, tls[place])
        except OSError as error:
            ends[place] = error

    threads = [threading.Thread(target=join, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    try:
        yield ends, meddler
    finally:
        for end in ends:
            if isinstance(end, Links):
                end.close()
        listener.close()
        meddler.close()


def _swap(ends: list[Links], times: int = 1) -> list[Any]:
    """What each end got of the other, or how it failed."""
    got: list[Any] = [None, None]

    def swap(place: int) -> None:
        into = np.zeros_like(VALUES)
        try:
            for _ in range(times):
                own = memoryview((VALUES * (place + 1)).view(np.uint8))
                ends[place].exchange(7, Swap({1 - place: [own]}, lambda other, weight: [into.view(np.uint8).data]))
            got[place] = into
        except PeerLost as error:
            got[place] = error

    threads = [threading.Thread(target=swap, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return got


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_ends_on_two_hosts_swap_what_they_have(encrypted: bool) -> None:
    with _linked(_identities() if encrypted else [None, None]) as (ends, _):
        first, second = _swap(ends, times=5)
    assert np.array_equal(first, VALUES * 2)
    assert np.array_equal(second, VALUES)


def test_a_byte_that_is_changed_on_its_way_ends_the_connection_for_both_ends_and_says_so() -> None:
    with _linked(_identities()) as (ends, meddler):
        meddler.meddle(1_000_000)
        first, _ = _swap(ends)
        assert meddler.meddled.is_set()
        again = _swap(ends)  # the other end may have had all that it needed of the first one
    assert "the connection to rank 1 was tampered with" in str(first)
    assert [type(each) for each in again] == [PeerLost, PeerLost]


def test_without_encryption_it_would_be_summed() -> None:
    """So the test before can fail."""
    with _linked([None, None]) as (ends, meddler):
        meddler.meddle(1_000_000)
        first, _ = _swap(ends)
    assert np.count_nonzero(first != VALUES * 2) == 1


def test_last_words_travel_while_a_swap_waits() -> None:
    with _linked(_identities()) as (ends, _):
        threading.Timer(0.3, ends[1].abort, ["rank 1 has had enough"]).start()
        with pytest.raises(PeerLost, match="rank 1 aborted: rank 1 has had enough"):
            ends[0].exchange(7, Swap({1: [memoryview(b"x")]}, lambda other, weight: [memoryview(bytearray(1))]))


def test_an_executor_cannot_stand_for_another_or_come_from_another_cluster() -> None:
    authority = Authority()
    names = [worker_name(0), worker_name(1)]
    honest = TlsPeers(authority.identify(names[0]), names)
    for posing in (
        TlsPeers(authority.identify(worker_name(2)), names),
        TlsPeers(replace(Authority().identify(names[1]), authority=authority.identify("x").authority), names),
    ):
        near, far = socket.socketpair()
        deadline = time.monotonic() + 5

        def show(posing: TlsPeers = posing, far: socket.socket = far, deadline: float = deadline) -> None:
            with suppress(OSError):
                posing.connected(far, 0, deadline).recv(1)

        thread = threading.Thread(target=show)
        thread.start()
        with pytest.raises((PermissionError, ssl.SSLError)):
            honest.accepted(near, 1, deadline)
        thread.join(10)


def test_a_byte_of_a_message_that_is_changed_on_its_way_ends_its_connection_and_the_next_is_heard(
    served: Callable[[str], Served],
) -> None:
    server = served(CONTROL)
    keys = AgentKeys(*(key.encode() for key in server.told["keys"]))
    meddler, delivery = Meddler(server.address), Redelivery()
    try:
        with zmq.Context() as context, dial(context, meddler.port, keys) as agent:
            for at in [None, *range(3, 200, 17)]:
                meddler.meddled.clear()
                if at is not None:
                    meddler.meddle(at)
                deadline = time.monotonic() + 20
                while not (at is None or meddler.meddled.is_set()) or not agent.poll(20):
                    assert time.monotonic() < deadline, f"nobody answers after byte {at} was changed"
                    agent.send_multipart(delivery.passing(encode(Heartbeat(5))))
                while agent.poll(50):
                    agent.recv_multipart()
    finally:
        meddler.close()
    assert answered_by_control(server, 20)


def test_a_byte_of_a_feed_that_is_changed_on_its_way_is_an_error_and_no_row() -> None:
    spool, plan = Spool(), FeedPlan((Column("x", "scalar", "int64"),))
    spool.open("f", 0, 1, plan.schema)
    receiver = FeedFlightServer("127.0.0.1", feed_access(), spool)
    receiver.start()
    host, port = receiver.endpoint.uri.split("://")[1].split(":")
    meddler = Meddler((host, int(port)))
    elsewhere = replace(receiver.endpoint, uri=f"grpc+tls://127.0.0.1:{meddler.port}", host_id="another")
    rows = pa.record_batch({"x": pa.array(range(300_000), pa.int64())})
    try:
        meddler.meddle(1_000_000)
        with pytest.raises(FeedError, match="worker 0 at"):
            send_partition(FeedJob("f", plan, (elsewhere,), feed_access(), timeout=20), 0, 1, [rows])
        assert meddler.meddled.is_set()
        assert send_partition(FeedJob("f", plan, (elsewhere,), feed_access(), timeout=20), 0, 2, [rows]).rows == 300_000
        assert spool.commit("f", [(0, 2, 300_000)])[0] == 300_000
    finally:
        receiver.close()
        spool.close()
        meddler.close()


class Settings:
    """A session, as far as its settings are asked for."""

    def __init__(self, **settings: str) -> None:
        self._settings = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        self.conf = self

    def get(self, name: str, default: str) -> str:
        return self._settings.get(name, default)


def _decided(encrypt: Any = "auto", spool_dir: str | None = None, **settings: str) -> Any:
    return encryption_of(Settings(**settings), encrypt, spool_dir, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "setting",
    ["network__crypto__enabled", "ssl__rpc__enabled", "authenticate__enableSaslEncryption", "authenticate"],
)
def test_encryption_follows_the_session_unless_it_is_told_otherwise(setting: str) -> None:
    assert _decided(**{setting: "true"}).network
    assert not _decided(**{setting: "false"}).network
    assert not _decided(False, **{setting: "true"}).network
    assert _decided(True).network
    assert not _decided().network


def _told(**settings: str) -> Finding:
    spark: Any = Settings(**settings)
    spark.sparkContext = SimpleNamespace(master="spark://host:7077")
    return _encryption(spark, ClusterSpec())


def test_the_doctor_tells_what_sparks_settings_mean_for_the_keys() -> None:
    off = _told()
    assert "off for a cluster started now (no setting" in off.text
    assert "anyone who can read Spark's RPC has them" in off.text
    alone = _told(authenticate="true")
    assert "on for a cluster started now (spark.authenticate)" in alone.text
    assert "spark.network.crypto.enabled" in alone.fix
    both = _told(authenticate="true", network__crypto__enabled="true", io__encryption__enabled="true")
    assert not both.fix
    assert "stay in memory" in both.text


def test_rows_stay_off_disks_where_spark_encrypts_what_it_writes() -> None:
    assert _decided().spool_dir is None
    assert (_decided(io__encryption__enabled="true").spool_dir, MEMORY) == (MEMORY, "/dev/shm")
    with pytest.raises(ClusterError, match=r"spark\.io\.encryption\.enabled"):
        _decided(spool_dir="/data", io__encryption__enabled="true")
