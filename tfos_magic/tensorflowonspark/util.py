"""Small things that programs take from this module."""

from __future__ import annotations

import os
import socket


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: object = ()) -> None:
    """Nothing is to be done: a node has the GPUs that Spark gave it."""


def get_ip_address() -> str:
    """The address of this host that packets to others leave from."""
    with socket.socket(type=socket.SOCK_DGRAM) as route:
        try:
            route.connect(("192.0.2.1", 9))  # nothing is sent
            return str(route.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def find_in_path(path: str, file: str) -> str | bool:
    """The first file of that name in the folders of ``path``, which are joined as in ``PATH``; else False."""
    found = (os.path.join(folder, file) for folder in path.split(os.pathsep))
    return next((candidate for candidate in found if os.path.isfile(candidate)), False)


def write_executor_id(num: int) -> None:
    """Nothing is to be done: nodes know their numbers."""


def read_executor_id() -> int:
    """The number of this node."""
    from tfos_magic.training import ranks

    return ranks.rank()
