"""Parameter servers without workers: how variables are shared out, who waits for whom, and who is not let in."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tfos_magic.errors import ProtocolError
from tfos_magic.training.allreduce import PeerLost
from tfos_magic.training.parameter_server.array_frames import pack, unpack
from tfos_magic.training.parameter_server.client import ServerGroup
from tfos_magic.training.parameter_server.coordinator import EPOCH_BEGINS, CellPosition, Coordinator, Ticket
from tfos_magic.training.parameter_server.placement import split_by_size
from tfos_magic.training.parameter_server.server import ParameterServer
from tfos_magic.training.parameter_server.trainer_keys import keys_of
from tfos_magic.transport.curve import secure_client


class Frame:
    def __init__(self, data: Any) -> None:
        self.buffer = memoryview(data)


class Answers:
    """What a coordinator answered, by peer and number."""

    def __init__(self) -> None:
        self.sent: dict[tuple[bytes, int], dict[str, Any]] = {}
        self.pushes: list[bytes] = []

    def send(self, ticket: Ticket, header: Mapping[str, Any], arrays: Sequence[Any]) -> None:
        self.sent[ticket.peer, ticket.number] = {**header, "arrays": [np.asarray(array) for array in arrays]}

    def push(self, ticket: Ticket) -> None:
        self.pushes.append(ticket.peer)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def three(answers: Answers) -> Coordinator:
    return Coordinator({0: b"a", 1: b"b", 2: b"c"}, 2, answers.send, answers.push)


@pytest.fixture
def address() -> Iterator[str]:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_variables_are_split_by_size_and_stay_whole() -> None:
    assert split_by_size([10, 70, 5, 60, 4], 2) == [[1, 2], [0, 3, 4]]
    assert split_by_size([3], 3) == [[0], [], []]


def test_frames_bring_arrays_back() -> None:
    arrays = [np.arange(6, dtype=np.int64).reshape(2, 3), np.float32(3.5), np.empty((0, 4), np.float32)]
    header, back = unpack([Frame(frame) for frame in pack({"kind": "x"}, arrays)])
    assert header["kind"] == "x"
    for mine, other in zip(arrays, back, strict=True):
        assert np.array_equal(mine, other)
        assert np.asarray(mine).shape == other.shape
    with pytest.raises(ProtocolError):
        unpack([Frame(b"{}")])


def test_a_fast_worker_waits_and_goes_on_when_the_slow_one_is_gone(three: Coordinator, answers: Answers) -> None:
    for number in range(3):
        three.push(0, [0, 0], Ticket(b"a", number))
    assert answers.pushes == [b"a"] * 2  # the third step would be more than two ahead
    three.push(1, [0, 0], Ticket(b"b", 0))
    assert len(answers.pushes) == 3
    three.drop(2, "killed")
    assert answers.pushes.count(b"a") == 3
    assert three.furthest == 3


def test_a_vote_to_stop_lets_everybody_go(three: Coordinator, answers: Answers) -> None:
    for number in range(3):
        three.push(0, [0, 0], Ticket(b"a", number))
    three.push(1, [1, 0], Ticket(b"b", 0))
    assert answers.pushes.count(b"a") == 3
    assert three.votes == [1, 0]


def test_a_sum_is_complete_without_the_dead(three: Coordinator, answers: Answers) -> None:
    place = CellPosition(1, 0, 1)
    three.contribute(0, place, [np.array([1.0])], Ticket(b"a", 7))
    three.contribute(2, place, [np.array([4.0])], Ticket(b"c", 7))
    assert not answers.sent
    three.drop(1, "killed")
    assert answers.sent[b"a", 7]["arrays"][0] == answers.sent[b"c", 7]["arrays"][0] == 5.0
    assert answers.sent[b"a", 7]["present"] == [0, 2]


def test_different_operations_are_an_error_for_all(three: Coordinator, answers: Answers) -> None:
    for rank, peer in ((0, b"a"), (1, b"b"), (2, b"c")):
        three.contribute(rank, CellPosition(1, 0, 1), [np.zeros(rank + 1)], Ticket(peer, 1))
    assert {reply["status"] for reply in answers.sent.values()} == {"lost"}
    assert len(answers.sent) == 3


def test_a_newcomer_is_let_in_when_an_epoch_begins(three: Coordinator, answers: Answers) -> None:
    three.drop(2, "killed")
    three.join(2, 1, Ticket(b"new", 1))
    for rank, peer in ((0, b"a"), (1, b"b")):
        three.contribute(rank, CellPosition(1, 0, 1), [], Ticket(peer, 1))
    assert (b"new", 1) not in answers.sent
    for rank, peer in ((0, b"a"), (1, b"b")):
        three.contribute(rank, CellPosition(1, 4, EPOCH_BEGINS), [], Ticket(peer, 2))
    assert answers.sent[b"new", 1]["epoch"] == 4
    assert three.is_member(2, b"new")


def test_a_newcomer_to_a_fit_that_is_over_is_told(three: Coordinator, answers: Answers) -> None:
    three.drop(2, "killed")
    for rank, peer in ((0, b"a"), (1, b"b")):
        three.contribute(rank, CellPosition(2, 0, EPOCH_BEGINS), [], Ticket(peer, 2))
    three.join(2, 1, Ticket(b"new", 1))
    assert answers.sent[b"new", 1]["over"] is True


def test_a_run_without_its_rank_0_is_lost(three: Coordinator, answers: Answers) -> None:
    three.contribute(1, CellPosition(1, 0, 1), [np.zeros(1)], Ticket(b"b", 1))
    three.drop(0, "killed")
    assert answers.sent[b"b", 1]["status"] == "lost"
    assert "rank 0" in answers.sent[b"b", 1]["text"]


def test_a_server_hears_only_those_who_know_the_secret(address: str) -> None:
    server = ParameterServer(address, "the secret of this generation")
    try:
        with pytest.raises(PeerLost):
            ServerGroup(0, 2, [address], "another secret", start_seconds=2.0)
        group = ServerGroup(0, 2, [address], "the secret of this generation", start_seconds=20.0)
        group.close()
    finally:
        server.close()


def test_whoever_knows_the_servers_key_but_has_one_of_their_own_is_not_let_in(address: str) -> None:
    server = ParameterServer(address, "s")
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            secure_client(stranger, keys_of("s", "server")[0], *zmq.curve_keypair())
            monitor = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            stranger.connect(f"tcp://{address}")
            assert monitor.poll(5000)
            assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            stranger.disable_monitor()
    finally:
        server.close()


def test_a_wait_for_a_server_can_be_given_up_and_ends_in_time(address: str) -> None:
    server = ParameterServer(address, "s")
    try:
        group = ServerGroup(0, 2, [address], "s", start_seconds=20.0)
        opened = {"kind": "open", "run": "r", "size": 2, "max_staleness": 1}
        assert group.ask_first(opened, "the run")[0]["member"] is True
        group.timeout = 0.5
        with pytest.raises(PeerLost, match=r"no answer within 0.5 s .* waiting for the next epoch"):
            group.ask_first({"kind": "join", "run": "r", "fit": 1}, "the next epoch")
        with pytest.raises(PeerLost):
            group.ask_first(opened, "the run")
        group.close()
    finally:
        server.close()
