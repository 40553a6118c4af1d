"""The TensorBoard process: serves one log directory and ends itself when the process that started it goes.

Run as ``python -m tfos_magic.tensorboard.main LOGDIR`` with a pipe as standard input, whose first line is the secret
that the paths of all requests begin with: command lines and environments can be read by others. The first line on
standard output is the port. Nothing else is written to the pipe: the system closes it when its owner ends, ``kill -9``
included.

TensorBoard is served from this module, not from its command line, because that one publishes each instance in a
world-writable folder. It reads event files in this process: its data server has a port that anybody may ask. Of a
directory on this machine it does so without TensorFlow, which takes seconds and 600 MB.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tfos_magic.tensorboard.guard import FewConnections, Guarded
from tfos_magic.tensorboard.log_folders import is_elsewhere

PARENT_CHECK_SECONDS = 1.0
RELOAD_SECONDS = 2


def main(argv: list[str]) -> int:
    """Serve ``argv[0]`` until standard input ends."""
    parent = os.getppid()
    secret = _read_secret()
    threading.Thread(target=_end_with_parent, args=(parent,), name="tfos-parent-watch", daemon=True).start()
    report = _reserve_stdout()
    port = _serve(argv[0], secret)
    with os.fdopen(report, "w") as stream:
        stream.write(f"{port}\n")
    threading.Event().wait()
    return 0


def _read_secret() -> str:
    """The first line of standard input; this process ends where it ends before."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1)):
            sys.exit("no secret came on standard input")
        line += more
    return line.decode().strip()


def _end_with_parent(parent: int) -> None:
    """Wait for the pipe to close, and for the parent to change: a forked copy of it could hold the pipe open."""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_SECONDS)
        if readable and not os.read(0, 4096):
            break
    os._exit(0)


def _reserve_stdout() -> int:
    """Keep standard output for the port alone; whatever libraries print goes to standard error."""
    report = os.dup(1)
    os.dup2(2, 1)
    return report


def _serve(logdir: str, secret: str) -> int:
    if not is_elsewhere(logdir):
        # By the presence of this module TensorBoard knows that it is to do without.
        sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")
    from tensorboard import default, program

    class Server(FewConnections, program.WerkzeugServer):
        def __init__(self, application: Any, flags: Any) -> None:
            super().__init__(Guarded(application, secret), flags)

    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Server)
    flags = ["--logdir", logdir, "--host", "127.0.0.1", "--port", "0", "--reload_interval", str(RELOAD_SECONDS)]
    reading = ["--load_fast", "false", "--reload_multifile", "true"]
    board.configure(["tensorboard", *flags, *reading], path_prefix=f"/{secret}")
    port = urlsplit(board.launch()).port
    if port is None:
        raise RuntimeError("TensorBoard serves, but on no port that its URL names")
    return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
