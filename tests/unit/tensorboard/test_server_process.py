"""TensorBoards: real processes, asked through their port, gone when their owner is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tfos_magic.tensorboard import guard, server_process
from tfos_magic.tensorboard.server_process import Failed, Reused, Started, TensorBoards, TimedOut, embed, embed_html

pytestmark = pytest.mark.slow

EXIT_SECONDS = 10.0


@pytest.fixture
def boards() -> Iterator[TensorBoards]:
    made = TensorBoards()
    yield made
    made.close()


def location(url: str) -> str:
    with urllib.request.urlopen(f"{url}data/environment", timeout=5) as reply:
        return str(json.load(reply)["data_location"])


def await_exit(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=EXIT_SECONDS)
    assert not alive


def below(pid: int | None = None) -> list[psutil.Process]:
    """Every process under ``pid``, or under this one."""
    return psutil.Process(pid).children(recursive=True)


def test_a_directory_is_served_once_and_then_reused(boards: TensorBoards, tmp_path: Path) -> None:
    first = boards.ensure(str(tmp_path))
    assert isinstance(first, Started)
    assert location(first.url) == str(tmp_path)
    assert boards.ensure(str(tmp_path) + "/") == Reused(str(tmp_path), first.port, first.secret)


@pytest.mark.soak
def test_connections_over_which_nobody_asks_are_few_and_keep_nobody_out(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    board = boards.ensure(str(tmp_path))
    assert isinstance(board, Started)
    (server,) = set(below()) - before
    assert location(board.url) == str(tmp_path)
    quiet = server.num_threads()
    with ExitStack() as opened:
        for _ in range(500):
            opened.enter_context(socket.create_connection(("127.0.0.1", board.port), timeout=5))
        assert location(board.url) == str(tmp_path)
        deadline = time.monotonic() + 20
        while server.num_threads() > quiet + guard.MOST_CONNECTIONS + 20:  # those that were ended take a moment
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_stopping_one_directory_leaves_the_other_and_no_process(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    kept = boards.ensure(str(tmp_path / "kept"))
    assert isinstance(kept, Started)
    between = set(below())
    boards.ensure(str(tmp_path / "stopped"))
    own = set(below()) - between
    assert own
    assert boards.stop(str(tmp_path / "stopped")) == 1
    await_exit(list(own))
    assert location(kept.url) == str(tmp_path / "kept")
    assert boards.stop() == 1
    await_exit(list(between - before))


def test_a_dead_process_is_replaced_not_trusted(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    boards.ensure(str(tmp_path))
    for process in set(below()) - before:
        process.kill()
    again = boards.ensure(str(tmp_path))
    assert isinstance(again, Started)
    assert location(again.url) == str(tmp_path)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "from tfos_magic.tensorboard.server_process import TensorBoards; import threading\n"
        f"boards = TensorBoards(); print(boards.ensure({str(tmp_path)!r}).url, flush=True)\n"
        "threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert location(owner.stdout.readline().strip()) == str(tmp_path)
            children = below(owner.pid)
        finally:
            owner.kill()
    assert children
    await_exit(children)


STARTING = """
import sys, threading
from tfos_magic.cluster.lifecycle import close_at_exit
from tfos_magic.tensorboard.server_process import TensorBoards
class Kernel:
    boards = TensorBoards()
    close_quickly = boards.close
close_at_exit(kernel := Kernel())
start = threading.Thread(target=kernel.boards.ensure, args=(sys.argv[2],), name="start", daemon=True)
(start.run if sys.argv[1] == "main" else start.start)()
threading.Event().wait()
"""


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_sigterm_while_tensorboard_starts_ends_the_process_and_leaves_nothing(thread: str, tmp_path: Path) -> None:
    slow = tmp_path / "tensorboard"
    slow.mkdir()
    (slow / "__init__.py").write_text(f"import time; open({str(tmp_path / 'mark')!r}, 'w').close(); time.sleep(60)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTING, thread, str(tmp_path)], env=environment) as owner:
        try:
            deadline = time.monotonic() + 30
            while not (tmp_path / "mark").exists():
                assert time.monotonic() < deadline, "no TensorBoard was being started within 30 s"
                time.sleep(0.02)
            children = below(owner.pid)
            owner.send_signal(signal.SIGTERM)
            assert owner.wait(EXIT_SECONDS) == -signal.SIGTERM
        finally:
            owner.kill()
    assert children
    await_exit(children)


def test_what_is_closed_starts_none_any_more(tmp_path: Path) -> None:
    before = set(below())
    boards = TensorBoards()
    assert isinstance(boards.ensure(str(tmp_path)), Started)
    boards.close()
    assert isinstance(boards.ensure(str(tmp_path)), Failed)
    assert set(below()) == before


def test_an_interrupt_of_the_kernel_does_not_reach_tensorboard(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    boards.ensure(str(tmp_path))
    groups = {os.getpgid(process.pid) for process in set(below()) - before}
    assert groups
    assert os.getpgrp() not in groups


def test_a_start_that_takes_too_long_is_ended_and_says_so(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    result = boards.ensure(str(tmp_path), timeout=0.001)
    assert result == TimedOut(str(tmp_path), 0.001)
    assert set(below()) == before
    assert "did not serve within 0.001 s" in embed(result)["text/plain"]


def test_a_start_that_fails_shows_what_was_printed(
    boards: TensorBoards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tensorboard"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('this TensorBoard is <broken>')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = boards.ensure(str(tmp_path / "logs"))
    assert isinstance(result, Failed)
    assert result.exit_code == 1
    bundle = embed(result)
    assert "this TensorBoard is <broken>" in bundle["text/plain"]
    assert "this TensorBoard is &lt;broken&gt;" in bundle["text/html"]


def test_two_threads_that_ask_at_once_share_one_tensorboard(boards: TensorBoards, tmp_path: Path) -> None:
    results: list[server_process.Result] = []
    threads = [
        threading.Thread(target=lambda: results.append(boards.ensure(str(tmp_path))), name=f"asker-{i}") for i in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(type(result).__name__ for result in results) == ["Reused", "Started"]


SERVING = Started("/logs", 6123, "s3cret")


def test_a_link_is_only_a_link_and_an_embed_is_an_iframe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    assert embed(SERVING)["text/plain"] == "TensorBoard of /logs: http://127.0.0.1:6123/s3cret/"
    assert "<iframe" in embed(SERVING, height=321)["text/html"]
    assert 'height="321"' in embed(SERVING, height=321)["text/html"]
    assert 'data-proxied="proxy/6123/s3cret/"' in embed(SERVING)["text/html"]
    link = embed(SERVING, link=True)["text/html"]
    assert link.startswith('<a href="http://127.0.0.1:6123/s3cret/" target')
    assert "<iframe" not in link


def test_behind_a_hub_a_link_leads_through_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ann'/")
    link = embed(SERVING, link=True)["text/html"]
    address = "&quot;/user/ann&#x27;/proxy/6123/s3cret/&quot;"
    assert f'onclick="this.href = new window.URL({address}, location.href)"' in link


def test_the_hub_prefix_reaches_the_page_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", '/user/ann"/')
    assert 'data-base="/user/ann&quot;/"' in embed_html(SERVING)
