"""Peers without the key, and peers that speak nonsense, at every port of a running cluster."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil
import pyarrow as pa
import pytest
import zmq
from pyarrow import flight
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tfos_magic import TFCluster
from tfos_magic.errors import ClusterError, FeedError
from tfos_magic.feed.access import FeedAccess
from tfos_magic.feed.agent.flight_messages import decode_error
from tfos_magic.transport.identity import FEEDER, Authority
from tfos_magic.transport.messages import FeedEndpoint, Register, encode

CELL = """
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(train, epochs={epochs})
"""


@pytest.fixture(scope="module")
def cluster(local_session: SparkSession) -> Iterator[TFCluster]:
    with TFCluster(local_session, workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def train(local_session: SparkSession) -> Any:
    features = F.array(*[F.rand(i).cast("float") for i in range(4)])
    return local_session.range(0, 400, 1, 2).select(features.alias("x"), (F.col("id") % 2).alias("y"))


def _address(uri: str) -> tuple[str, int]:
    host, port = uri.split("://", 1)[1].rsplit(":", 1)
    return host, int(port)


def _ports(cluster: TFCluster) -> dict[str, tuple[str, int]]:
    ports = {"control": _address(cluster.endpoint)}
    for worker in cluster.workers:
        ports[f"feed {worker.rank}"] = _address(worker.agent.feed.uri)
    return ports


def _shout(address: tuple[str, int], data: bytes) -> None:
    """Send bytes and look whether the other side answers with anything but an end."""
    with socket.create_connection(address, timeout=5) as stranger:
        stranger.sendall(data)


@pytest.mark.soak
def test_nobody_listens_for_peers_once_the_trainers_know_each_other(cluster: TFCluster) -> None:
    cluster.wait_ready()
    for worker in cluster.workers:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((worker.agent.host, worker.agent.tensor_port), timeout=5)


@pytest.mark.parametrize("key", ["another key", "no key"])
def test_a_peer_without_the_clusters_key_is_not_heard(
    cluster: TFCluster, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = cluster.status()
    message = encode(
        Register(
            slot=0, host="10.0.0.1", pid=1, tensor_port=1, feed=FeedEndpoint("grpc+tls://10.0.0.1:1", "worker-0.tfos")
        )
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        if key == "another key":
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            assert cluster._control is not None
            stranger.curve_serverkey = cluster._control.public
        monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        stranger.connect(cluster.endpoint)
        with suppress(zmq.Again):  # turned away already, so that there is nobody to send it to
            stranger.send_multipart(message, zmq.NOBLOCK)
        assert not monitor.poll(1500), "the handshake must not succeed"
        stranger.disable_monitor()
        monitor.close(0)
    assert cluster.status().workers[0].host == before.workers[0].host
    assert cluster.ready


FORGERY = """
from tfos_magic.training import ranks
from tfos_magic.transport.messages import EpochEnd, Notice, Output, RunFinished
context = ranks._runs[-1]
if ranks.rank() == 1:
    for message in (
        Output(context.run_id, 0, "stdout", "forged"), Notice(context.run_id, 0, "forged"),
        EpochEnd(context.run_id, 0, 0, 7, {"forged": 1.0}), EpochEnd(context.run_id, 1, 0, 7, {"forged": 1.0}),
        RunFinished(context.run_id, 0, "error", {"kind": "Forged", "message": "forged"}),
        RunFinished(context.run_id, 7, "ok"),
    ):
        context.emit(message)
"""


def test_a_worker_that_speaks_as_another_is_not_heard_and_told_of_once(
    cluster: TFCluster, train: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tfos_magic.cluster"):
        run = cluster.submit(FORGERY + CELL.format(epochs=2), frames={"train": train}, label="y", outputs=["history"])
        assert len(run.wait()["history"].history["loss"]) == 2
    assert "forged" not in "".join(run.state.notices)
    assert not any("forged" in metrics for metrics in run.state.history)
    assert "forged" not in "".join(line.text for line in run.state.workers[0].log)
    (warning,) = [record.getMessage() for record in caplog.records if "as another" in record.getMessage()]
    assert "that worker 1 sent as another" in warning


def test_rows_are_taken_of_nobody_without_a_certificate_of_the_cluster_and_its_token(cluster: TFCluster) -> None:
    token, authority = cluster._token, cluster._authority
    known, foreign = authority.identify(FEEDER), Authority().identify(FEEDER)
    nameless = replace(foreign, authority=known.authority)  # expects the right server, and cannot show who it is
    for worker in cluster.workers:
        socket_alone = worker.agent.feed
        elsewhere = replace(socket_alone, host_id="another host")
        with pytest.raises(flight.FlightUnauthenticatedError):
            _put(FeedAccess("wrong", known), socket_alone)
        with pytest.raises(flight.FlightUnauthenticatedError):
            _put(FeedAccess("wrong", known), elsewhere)
        with pytest.raises(FeedError, match="not a feed of tfos_magic"):  # it is heard, and is none
            _put(FeedAccess(token, known), elsewhere)
        for identity in (foreign, nameless):
            with pytest.raises(flight.FlightUnavailableError):
                _put(FeedAccess(token, identity), elsewhere)
        with pytest.raises(flight.FlightUnavailableError):  # the certificate is that of another worker
            _put(FeedAccess(token, known), replace(elsewhere, name="worker-9.tfos"))


def _put(access: FeedAccess, endpoint: FeedEndpoint) -> None:
    batch = pa.record_batch({"x": [1.0]})
    with access.connect(endpoint) as client:
        command = flight.FlightDescriptor.for_command(b"{}")
        writer, _ = client.do_put(command, batch.schema, options=access.options(10))
        try:
            writer.write_batch(batch)
            writer.close()
        except flight.FlightServerError as error:
            raise decode_error(error.extra_info) or error from None


def test_what_a_stranger_sends_to_the_feeds_port_is_not_kept(cluster: TFCluster) -> None:
    """Of 256 MB in one call an agent kept all, before it was refused for want of the token."""
    process = psutil.Process(cluster.workers[0].agent.pid)
    before, port = process.memory_info().rss, _address(cluster.workers[0].agent.feed.uri)[1]
    for scheme, options in (("grpc", {}), ("grpc+tls", {"disable_server_verification": True})):
        with flight.connect(f"{scheme}://127.0.0.1:{port}", **options) as client, pytest.raises(pa.ArrowException):
            list(client.do_action(flight.Action("fail-feed", bytes(256 << 20)), flight.FlightCallOptions(timeout=20)))
    assert process.memory_info().rss - before < 50e6


def test_a_feeds_socket_lies_in_a_folder_that_its_user_alone_enters(cluster: TFCluster) -> None:
    for worker in cluster.workers:
        status = os.stat(os.path.dirname(worker.agent.feed.socket))
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.getuid(), 0o700)


class _Bomb:
    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["TFOS_BOMB"],))


def test_a_pickle_from_a_stranger_is_never_opened(
    cluster: TFCluster, train: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFOS_BOMB", str(tmp_path / "exploded"))
    bomb, agents = pickle.dumps(_Bomb()), [worker.agent.pid for worker in cluster.workers]
    for address in _ports(cluster).values():
        _shout(address, bomb)
    run = cluster.submit(CELL.format(epochs=1), frames={"train": train}, label="y", outputs=["history"])
    assert len(run.wait()["history"].history["loss"]) == 1
    assert [worker.agent.pid for worker in cluster.workers] == agents, run.state.notices
    assert not (tmp_path / "exploded").exists()


def test_secrets_are_in_no_command_line_environment_or_log(cluster: TFCluster) -> None:
    configs = [job._task._config for job in cluster._agents._jobs.values()]
    secrets = [cluster._token.encode(), *(s for c in configs for s in (c.secret, c.identity.key.encode()))]
    pids = [pid for worker in cluster.workers for pid in (worker.pid, worker.agent.pid)]
    for pid in pids:
        for file in ("cmdline", "environ"):
            with open(f"/proc/{pid}/{file}", "rb") as text:
                content = text.read()
            assert not any(secret in content for secret in secrets)
    said = "\n".join(line for lines in cluster.logs(tail=500).values() for line in lines).encode()
    assert not any(secret in said for secret in secrets)
    assert len(configs) == cluster.size
    assert not any(secret.decode() in repr(config) for secret in secrets for config in configs)


def test_every_port_of_ours_is_bound_to_one_interface(cluster: TFCluster) -> None:
    bound = {}
    for worker in cluster.workers:
        for pid in (worker.agent.pid, os.getpid()):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    bound[connection.laddr.port] = connection.laddr.ip.removeprefix("::ffff:")
    ports = _ports(cluster)
    assert {bound[port] for _, port in ports.values()} == {"127.0.0.1"}


def test_sums_over_ports_that_nothing_guards_are_refused_where_what_crosses_hosts_is_encrypted(
    local_session: SparkSession,
) -> None:
    with pytest.raises(ClusterError, match=r"(?s)over unprotected ports.*leave nccl out, or set encrypt=False"):
        TFCluster(local_session, workers=2, nccl=True, encrypt=True).start()
