"""The TensorBoard process: serves one log directory and ends itself when the process that started it goes.

Run as ``python -m tfos_magic.tensorboard.main LOGDIR`` with a pipe as standard input. The first line on
standard output is the port. Nobody writes to the pipe: the system closes it when its owner ends, ``kill -9`` included,
and TensorBoard's data server watches its own pipe in the same way, so it follows.

TensorBoard is served from this module, not from its command line, because that one publishes each instance in a
world-writable folder and loads TensorFlow, which scalars, graphs and images do not need.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from urllib.parse import urlsplit

PARENT_CHECK_SECONDS = 1.0
RELOAD_SECONDS = 2


def main(argv: list[str]) -> int:
    """Serve ``argv[0]`` until standard input ends."""
    parent = os.getppid()
    threading.Thread(target=_end_with_parent, args=(parent,), name="tfos-parent-watch", daemon=True).start()
    report = _reserve_stdout()
    port = _serve(argv[0])
    with os.fdopen(report, "w") as stream:
        stream.write(f"{port}\n")
    threading.Event().wait()
    return 0


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


def _serve(logdir: str) -> int:
    from tensorboard import default, program

    board = program.TensorBoard(plugins=default.get_plugins())
    flags = ["--logdir", logdir, "--host", "127.0.0.1", "--port", "0", "--reload_interval", str(RELOAD_SECONDS)]
    board.configure(["tensorboard", *flags])
    port = urlsplit(board.launch()).port
    if port is None:
        raise RuntimeError("TensorBoard serves, but on no port that its URL names")
    return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
