"""How an agent counts the seconds in which it does not reach its kernel."""

from __future__ import annotations

import time

import pytest
import zmq

from tests.unit.control import config_of
from tfos_magic.transport.control_client import ControlClient
from tfos_magic.transport.control_server import ControlServer


def _await_event(client: ControlClient) -> None:
    assert client.monitor.poll(5000)
    client.note_connection()


def test_a_kernel_that_was_not_met_yet_counts_as_busy_and_one_that_is_gone_does_not(server: ControlServer) -> None:
    client = ControlClient(config_of(server))
    assert client.answered
    while client.out_of_reach:
        _await_event(client)
    server.close()
    while client.answered:
        _await_event(client)
    assert client.out_of_reach > 0
    client.close()


def test_seconds_in_which_the_agent_did_not_run_do_not_count(server: ControlServer) -> None:
    client = ControlClient(config_of(server))
    time.sleep(0.2)
    before = client.out_of_reach
    client.excuse(0.2)
    assert before >= 0.2 > client.out_of_reach
    client.excuse(100)
    assert 0 <= client.out_of_reach < 0.1
    client.close()


def test_an_agent_that_never_met_the_kernel_names_both_addresses_and_the_remedy(server: ControlServer) -> None:
    server.close()
    client = ControlClient(config_of(server))
    assert not client.monitor.poll(1000)
    where = server.endpoint.removeprefix("tcp://")
    said = client.describe_loss("alpha", 30)
    assert said.startswith(f"host alpha could not reach the kernel at {where}, which it tried for 30 s: open that port")
    assert "%config TFOS.driver_host" in said
    assert "%tfos doctor" in said
    client.close()


def test_an_agent_that_has_met_the_kernel_says_how_long_it_was_gone(server: ControlServer) -> None:
    client = ControlClient(config_of(server))
    while client.out_of_reach:
        _await_event(client)
    assert client.describe_loss("alpha", 5) == "the kernel has been out of reach for 5 s"
    client.close()


def test_a_connection_that_stands_before_the_agent_goes_on_is_known_of(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = zmq.Socket.connect

    def slowly(socket: zmq.Socket[bytes], endpoint: str) -> object:
        done = connect(socket, endpoint)
        if endpoint == server.endpoint:
            time.sleep(0.5)
        return done

    monkeypatch.setattr(zmq.Socket, "connect", slowly)
    client = ControlClient(config_of(server))
    while client.out_of_reach:
        _await_event(client)
    client.close()
