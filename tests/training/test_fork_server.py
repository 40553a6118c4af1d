"""Trainers forked of a process that has TensorFlow loaded: who gets one, what it begins with, and what ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import psutil
import pytest

from tfos_magic.processes.fork_client import ForkClient, ForkedProcess, is_own
from tfos_magic.worker.fork_server import ForkServer

SECONDS = 60.0
Agent = tuple[ForkClient, Callable[[], ForkedProcess]]


@pytest.fixture
def agent() -> Iterator[Callable[..., Agent]]:
    """What makes clients as an agent has one, and what asks them for a trainer that waits for its first message."""
    clients: list[ForkClient] = []
    links: list[Connection] = []

    def make(**environment: str) -> Agent:
        path = os.pathsep.join(path for path in sys.path if path)
        client = ForkClient("0", {**os.environ, "PYTHONPATH": path, **environment})
        clients.append(client)

        def fork() -> ForkedProcess:
            ours, theirs = Pipe()
            links.append(ours)
            with open(os.devnull, "wb") as nowhere:
                forked = client.fork([theirs.fileno(), nowhere.fileno(), nowhere.fileno()], {})
            theirs.close()
            _until(lambda: client.poll(forked) is not None or forked.pid)
            return forked

        return client, fork

    yield make
    for link in links:
        link.close()
    for client in clients:
        client.close()


@pytest.mark.soak
def test_agents_of_an_executor_share_a_server_which_ends_with_the_last(agent: Callable[..., Agent]) -> None:
    (first, fork_first), (second, fork_second) = agent(), agent()
    mine, other = psutil.Process(fork_first().pid), psutil.Process(fork_second().pid)
    server = mine.parent()
    assert server is not None
    assert server == other.parent()
    assert (server.name(), mine.name(), server.num_threads()) == ("tfos-forkserver", "tfos-trainer", 1)
    first.close()
    _until(lambda: not _runs(mine))
    assert _runs(other)
    second.close()
    _until(lambda: not _runs(other) and not _runs(server))


def test_an_agent_hears_how_its_trainer_ended(agent: Callable[..., Agent]) -> None:
    client, fork = agent()
    killed, stopped, another = fork(), fork(), fork()
    os.kill(killed.pid, signal.SIGSEGV)
    _until(lambda: client.poll(killed) is not None)
    assert killed.code == -signal.SIGSEGV
    os.kill(stopped.pid, signal.SIGSTOP)
    client.kill(stopped, 5.0)
    assert stopped.code == -signal.SIGKILL
    assert client.poll(another) is None


@pytest.mark.soak
def test_after_a_killed_server_its_trainers_are_gone_and_another_is_started(agent: Callable[..., Agent]) -> None:
    client, fork = agent()
    forked = fork()
    trainer = psutil.Process(forked.pid)
    server = trainer.parent()
    assert server is not None
    server.kill()
    _until(lambda: client.poll(forked) is not None and not _runs(trainer))
    assert forked.code == -signal.SIGKILL
    assert psutil.Process(fork().pid).ppid() != server.pid


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [0.02, 0.0, 0.005, 0.05, 0.1])
def test_an_agent_that_comes_as_the_last_one_leaves_has_its_trainer(
    agent: Callable[..., Agent], seconds: float
) -> None:
    client, fork = agent()
    fork()
    client.close()
    time.sleep(seconds)  # the server is at different points of its end
    _, fork = agent()
    forked = fork()
    assert forked.code is None
    assert forked.pid


@pytest.mark.soak
def test_a_trainer_ends_with_an_agent_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        textwrap.dedent("""
        import os, time
        from multiprocessing.connection import Pipe
        from tfos_magic.processes.fork_client import ForkClient
        client = ForkClient("0", dict(os.environ))
        ours, theirs = Pipe()
        forked = client.fork([theirs.fileno(), 1, 2], {})
        while not forked.pid:
            client.poll(forked)
            time.sleep(0.01)
        print(forked.pid, flush=True)
        time.sleep(60)
        """)
    )
    path = os.pathsep.join(path for path in sys.path if path)
    agent = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert agent.stdout is not None
    trainer = psutil.Process(int(agent.stdout.readline()))
    server = trainer.parent()
    assert server is not None
    agent.kill()
    agent.communicate()
    _until(lambda: not _runs(trainer) and not _runs(server))


@pytest.mark.soak
def test_where_an_import_starts_a_thread_trainers_start_anew(agent: Callable[..., Agent], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    _, fork = agent(PYTHONPATH=path)
    trainer = psutil.Process(fork().pid)
    _until(lambda: "tfos_magic.worker.trainer" in trainer.cmdline())
    _until(lambda: trainer.num_threads() > 1)


def test_a_server_that_dies_while_it_loads_leaves_its_last_words(agent: Callable[..., Agent], tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import os, sys\nsys.stderr.write('no AVX here')\nos.abort()\n")
    path = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    client, fork = agent(PYTHONPATH=path)
    assert fork().code == -signal.SIGABRT
    assert "no AVX here" in client.last_output()


def test_other_users_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert is_own(mine)
    monkeypatch.setattr(os, "getuid", lambda: 2**20)
    assert not is_own(mine)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, mine, theirs:
        listener.bind(f"\0tfos-test-{os.getpid()}")
        listener.listen()
        handler = signal.getsignal(signal.SIGCHLD)
        server = ForkServer(listener)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(f"\0tfos-test-{os.getpid()}")
                server._accept()
                assert stranger.recv(1) == b""
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, handler)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
