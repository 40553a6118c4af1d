"""A TensorBoard is its user's own: whoever does not know its path gets nothing, whatever the browser says of itself."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tfos_magic.tensorboard.scalars import ScalarWriter
from tfos_magic.tensorboard.server_process import Started, TensorBoards

pytestmark = pytest.mark.slow

ENVIRONMENT = "data/environment"
FOREIGN = {"Host": "rebound.example"}
PROXIED = {"X-ProxyContextPath": "/user/ann/proxy/6006"}
LOAD_SECONDS = 30.0


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def board(logs: Path) -> Iterator[Started]:
    boards = TensorBoards()
    started = boards.ensure(str(logs))
    assert isinstance(started, Started)
    yield started
    boards.close()


@pytest.fixture(scope="module")
def process(board: Started) -> psutil.Process:
    (process,) = [each for each in psutil.Process().children() if "tfos_magic.tensorboard.main" in each.cmdline()]
    return process


def ask(board: Started, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, str]:
    """Status, body and Referrer-Policy of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=10)
    try:
        connection.request("GET", path, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.getheader("Referrer-Policy", "")
    finally:
        connection.close()


@pytest.mark.parametrize("headers", [{}, FOREIGN, PROXIED, FOREIGN | PROXIED], ids=["", "foreign", "proxied", "both"])
@pytest.mark.parametrize(
    "path", ["/", "/index.js", "/data/environment", "/data/runs", "/wrong/data/runs", "//", "/%ff/"]
)
def test_without_the_secret_there_is_nothing(board: Started, path: str, headers: dict[str, str]) -> None:
    assert ask(board, path, headers)[:2] == (404, b"")


def test_a_part_of_the_secret_opens_nothing(board: Started) -> None:
    for secret in (board.secret[:-1], f"{board.secret}x", board.secret.swapcase(), f"x/{board.secret}"):
        assert ask(board, f"/{secret}/{ENVIRONMENT}")[:2] == (404, b"")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8123"}, 200),  # a tunnel of another port
        ({"Host": "[::1]:6006"}, 200),
        (FOREIGN, 404),
        ({"Host": "localhost.rebound.example"}, 404),
        ({"Host": "127.0.0.1.rebound.example"}, 404),
        ({"Host": "[oops"}, 404),
        ({"Host": ""}, 404),
        ({"Host": "hub.example"} | PROXIED, 200),  # what jupyter-server-proxy sends for a browser at a hub
    ],
)
def test_with_the_secret_a_browser_here_and_the_proxy_are_answered_and_foreign_names_are_not(
    board: Started, headers: dict[str, str], status: int
) -> None:
    answer = ask(board, f"/{board.secret}/{ENVIRONMENT}", headers)
    assert answer[0] == status
    assert bool(answer[1]) == (status == 200)


def test_the_secret_is_in_no_command_line_environment_repr_or_log(board: Started, process: psutil.Process) -> None:
    for path in (ENVIRONMENT, "nowhere", "data/plugin/scalars/tags?experiment=x", ""):
        ask(board, f"/{board.secret}/{path}")
    assert board.secret not in " ".join(process.cmdline())
    assert board.secret not in str(process.environ())
    assert board.secret not in repr(board)
    assert board.secret not in Path(f"/proc/{process.pid}/fd/2").read_text()


def test_pages_keep_their_address_from_what_they_ask_of_others(board: Started) -> None:
    assert ask(board, f"/{board.secret}/")[2] == "no-referrer"


def test_it_is_one_process_with_one_port_and_without_tensorflow(board: Started, process: psutil.Process) -> None:
    assert process.children(recursive=True) == []
    listening = [each for each in process.net_connections("all") if each.status == psutil.CONN_LISTEN]
    assert [each.laddr for each in listening] == [("127.0.0.1", board.port)]
    assert not any("/tensorflow/" in each.path for each in process.memory_maps())


@pytest.mark.soak
def test_what_is_written_later_is_shown_from_every_file_of_a_folder(board: Started, logs: Path) -> None:
    with ScalarWriter(str(logs)) as first, ScalarWriter(str(logs)) as second:
        for tag, writer in (("first", first), ("second", second), ("last", first)):
            writer.epoch(0, {tag: 0.5})
            awaited, deadline = f"epoch_{tag}".encode(), time.monotonic() + LOAD_SECONDS
            while awaited not in ask(board, f"/{board.secret}/data/plugin/scalars/tags")[1]:
                assert time.monotonic() < deadline, f"{tag} was not shown within {LOAD_SECONDS:.0f} s"
                time.sleep(0.1)


def test_each_start_has_a_secret_of_its_own_and_the_one_before_opens_nothing(tmp_path: Path) -> None:
    boards = TensorBoards()
    try:
        before = boards.ensure(str(tmp_path))
        boards.stop()
        after = boards.ensure(str(tmp_path))
        assert isinstance(before, Started)
        assert isinstance(after, Started)
        assert len(after.secret) >= 43  # 256 bits
        assert ask(after, f"/{before.secret}/{ENVIRONMENT}")[:2] == (404, b"")
        assert ask(after, f"/{after.secret}/{ENVIRONMENT}")[0] == 200
    finally:
        boards.close()
