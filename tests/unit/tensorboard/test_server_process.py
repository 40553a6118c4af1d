"""TensorBoards: real processes, asked through their port, gone when their owner is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tfos_magic.tensorboard import server_process
from tfos_magic.tensorboard.server_process import Failed, Reused, Started, TensorBoards, TimedOut, embed, embed_html

EXIT_SECONDS = 10.0


@pytest.fixture
def boards() -> Iterator[TensorBoards]:
    made = TensorBoards()
    yield made
    made.close()


def location(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/environment", timeout=5) as reply:
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
    assert location(first.port) == str(tmp_path)
    assert boards.ensure(str(tmp_path) + "/") == Reused(str(tmp_path), first.port)


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
    assert location(kept.port) == str(tmp_path / "kept")
    assert boards.stop() == 1
    await_exit(list(between - before))


def test_a_dead_process_is_replaced_not_trusted(boards: TensorBoards, tmp_path: Path) -> None:
    before = set(below())
    boards.ensure(str(tmp_path))
    for process in set(below()) - before:
        process.kill()
    again = boards.ensure(str(tmp_path))
    assert isinstance(again, Started)
    assert location(again.port) == str(tmp_path)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "from tfos_magic.tensorboard.server_process import TensorBoards; import threading\n"
        f"boards = TensorBoards(); print(boards.ensure({str(tmp_path)!r}).port, flush=True)\n"
        "threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert location(int(owner.stdout.readline())) == str(tmp_path)
            children = below(owner.pid)
        finally:
            owner.kill()
    assert children
    await_exit(children)


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


def test_a_link_is_only_a_link_and_an_embed_is_an_iframe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    result = Started("/logs", 6123)
    assert embed(result)["text/plain"] == "TensorBoard of /logs: http://127.0.0.1:6123/"
    assert "<iframe" in embed(result, height=321)["text/html"]
    assert 'height="321"' in embed(result, height=321)["text/html"]
    link = embed(result, link=True)["text/html"]
    assert link.startswith('<a href="http://127.0.0.1:6123/" target')
    assert "<iframe" not in link


def test_behind_a_hub_a_link_leads_through_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ann'/")
    link = embed(Started("/logs", 6123), link=True)["text/html"]
    assert 'onclick="this.href = new window.URL(&quot;/user/ann&#x27;/proxy/6123/&quot;, location.href)"' in link


def test_the_hub_prefix_reaches_the_page_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", '/user/ann"/')
    assert 'data-proxy="/user/ann&quot;/"' in embed_html(6123)
