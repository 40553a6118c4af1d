"""An executor's fork server: a process that has TensorFlow loaded, of which the trainers of its agents are forked.

It is single-threaded: where something that was imported has started a thread, a trainer starts anew, with nothing
loaded. Each agent has a connection to it, asks there for trainers, and hears there how they ended; with
the connection of an agent its trainers end, with the last connection the server itself.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import Any

from tfos_magic.lean import gc_paused
from tfos_magic.processes.child_process import PARENT_VARIABLE, name_process
from tfos_magic.processes.fork_client import (
    DESCRIPTORS,
    LISTENER_VARIABLE,
    MESSAGE_BYTES,
    SERVER_NAME,
    TRAINER_NAME,
    is_own,
)
from tfos_magic.worker import host, trainer


class ForkServer:
    """Serves the agents that connect to ``listener``, the first of which has done so before the server began."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._agents: dict[socket.socket, dict[int, int]] = {}
        self._selector = selectors.DefaultSelector()
        self._child_ended, waker = socket.socketpair()
        for each in (self._child_ended, waker):
            each.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Run until no agent is connected any more."""
        self._selector.register(self._child_ended, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._agents:
            self._accept()
        while self._agents or self._closed_to_further_agents():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._child_ended:
                    self._reap()
                elif isinstance(key.fileobj, socket.socket):
                    self._obey(key.fileobj)

    def _closed_to_further_agents(self) -> bool:
        """Close the listener; True where agents had connected by then, which are served yet.

        Who comes later is refused, and starts a server: nobody waits for an answer of a process that ends.
        """
        if self._listener.fileno() < 0:
            return False
        self._selector.unregister(self._listener)
        self._listener.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):  # all have been taken
            while True:
                self._accept()
        self._listener.close()
        return bool(self._agents)

    def _accept(self) -> None:
        agent, _ = self._listener.accept()
        if not is_own(agent):  # anybody on this host can connect
            agent.close()
            return
        self._agents[agent] = {}
        self._selector.register(agent, selectors.EVENT_READ)

    def _obey(self, agent: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(agent, MESSAGE_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, fds = b"", []
        if not data:
            self._leave(agent)
            return
        request = json.loads(data)
        if "kill" in request:
            self._kill(self._agents[agent].get(request["kill"], 0))
            return
        loaded = _is_single_threaded()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(agent, {"id": request["id"], "failed": str(error)})
        else:
            if not pid:
                self._become_trainer(request, fds, loaded)
            self._agents[agent][request["id"]] = pid
            _tell(agent, {"id": request["id"], "pid": pid})
        for fd in fds:
            os.close(fd)

    def _leave(self, agent: socket.socket) -> None:
        """End what the agent left."""
        self._selector.unregister(agent)
        agent.close()
        for pid in self._agents.pop(agent).values():
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        if pid:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            self._child_ended.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for agent, trainers in self._agents.items():
                for number in [number for number, forked in trainers.items() if forked == pid]:
                    del trainers[number]
                    _tell(agent, {"id": number, "code": os.waitstatus_to_exitcode(status)})

    def _become_trainer(self, request: dict[str, Any], fds: list[int], loaded: bool) -> None:
        """Be a new process that runs a trainer, with what is ``loaded`` or anew, and never come back from here."""
        try:
            link = _set_up(request, fds)
            if not loaded:
                os.set_inheritable(link, True)
                os.execv(sys.executable, [sys.executable, "-m", "tfos_magic.worker.trainer", str(link)])
            self._selector.close()
            for each in (self._listener, self._child_ended, self._waker, *self._agents):
                each.close()
            trainer.main(link)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(1)


def _set_up(request: dict[str, Any], fds: list[int]) -> int:
    """Give this process, just forked, what a new one has for itself; returns its link."""
    import numpy as np

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    link, *streams = fds
    for fd, stream in zip(streams, (1, 2), strict=True):
        os.dup2(fd, stream)
        os.close(fd)
    os.environ.update(request["environment"])
    os.setsid()
    name_process(TRAINER_NAME)
    sys.path.extend(path for path in request["path"] if path not in sys.path)
    tempfile.tempdir = None
    np.random.seed()
    return link


def _tell(agent: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # it is gone, which is read next
        agent.send(json.dumps(message).encode())


def _load() -> None:
    """Import what trainers need. What cannot be imported, they say themselves."""
    with gc_paused(), suppress(Exception):
        host.load()
        import tfos_magic.training.parameter_server.server  # noqa: F401
    # OpenBLAS ends its threads before a fork, to start them where they are needed next: not here.
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)


def _is_single_threaded() -> bool:
    return len(os.listdir("/proc/self/task")) == 1


def main() -> None:
    """Entry of the process."""
    name_process(SERVER_NAME)
    os.environ[PARENT_VARIABLE] = str(os.getpid())  # of all that it forks
    listener = socket.socket(fileno=int(os.environ.pop(LISTENER_VARIABLE)))
    _load()
    ForkServer(listener).serve()
    os._exit(0)  # TensorFlow takes its time, and nothing is left to be lost


if __name__ == "__main__":
    main()
