"""All-reduce of float32 between hosts that a slow network connects: beside PyTorch's Gloo, and what the network gives.

Hosts are network namespaces of this machine, with links of a rate and a delay (``network.py``; Linux, as root). Ours
and Gloo are as in ``allreduce.py``. What the network gives is the rate at which a bare socket sends to another host; an
all-reduce has each host send 2 (n - 1) / n of the values, and its rate is that of these bytes. All take turns in one
run; shown are medians over the turns, and ratios within a turn.

    python benchmarks/slow_network.py [--hosts 2,3] [--turns 3] [--sizes 0.004,1,64] [--links 1000/1,1000/20]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import peers
from allreduce import gloo, ours
from network import Link, Network, available
from plain import Ranks, start_process

PORT = 5000
STREAM_SECONDS = 2.0

System = Callable[[int, list[str]], Any]
SYSTEMS: dict[str, System] = {"ours": ours, "Gloo": gloo}


def serve(pipe: Any, door: str, system: str, rank: int, addresses: list[str]) -> None:
    """Be a host, and time all-reduces of the sizes that come through ``pipe``."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["GLOO_SOCKET_IFNAME"] = "tfos0"
    Network.join(door, rank)
    make = SYSTEMS[system](rank, addresses)
    made: dict[int, Callable[[], Any]] = {}
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            count, repeats = pipe.recv()
            reduce = made[count] = made.get(count) or make(count, 1)
            reduce()
            began = time.perf_counter()
            for _ in range(repeats):
                reduce()
            pipe.send((time.perf_counter() - began) / repeats)
    os._exit(0)


def serve_stream(pipe: Any, door: str, rank: int, addresses: list[str]) -> None:
    """Be the host of one end of a connection, and tell the bytes per second that came over it, each time asked."""
    Network.join(door, rank)
    host, port = addresses[0].rsplit(":", 1)
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            connection = listener.accept()[0]
    else:
        time.sleep(0.5)
        connection = socket.create_connection((host, int(port)))
    pipe.send("ready")
    block = bytearray(1 << 20)
    with contextlib.suppress(EOFError):
        while True:
            count = pipe.recv()
            connection.recv_into(block, 1) if rank else connection.sendall(b"+")
            began = time.perf_counter()
            left = count
            while left:
                left -= connection.send(memoryview(block)[:left]) if rank else connection.recv_into(block)
            pipe.send(count / (time.perf_counter() - began))


class Running(Ranks):
    """The hosts of a system, and their network."""

    def __init__(self, system: str, hosts: int, link: Link) -> None:
        self._opened = contextlib.ExitStack()
        network = self._opened.enter_context(Network(hosts, link))
        addresses = [f"{Network.address(rank)}:{PORT + rank}" for rank in range(hosts)]
        target, arguments = (serve, (network.door, system)) if system in SYSTEMS else (serve_stream, (network.door,))
        started = [start_process(target, *arguments, rank, addresses) for rank in range(hosts)]
        super().__init__(started)

    def close(self) -> None:
        super().close()
        self._opened.close()


def measure(hosts: int, link: Link, sizes: list[int], turns: int, systems: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(contextlib.closing(Running(name, hosts, link))) for name in systems}
        bare = stack.enter_context(contextlib.closing(Running("bare", 2, link)))
        given = statistics.median(bare.ask(int(link.rate / 8 * STREAM_SECONDS))[0] for _ in range(turns))
        for size in sizes:
            expected = 2 * (hosts - 1) / hosts * size / given + link.round_trip
            repeats = max(1, min(20, round(1.0 / expected)))
            taken: dict[str, list[float]] = {name: [] for name in systems}
            for turn in range(turns):
                for place in range(len(systems)):
                    name = systems[(turn + place) % len(systems)]
                    taken[name].append(max(running[name].ask((size // 4, repeats))))
            cells = [f"{statistics.median(times) * 1e3:10.1f}" for times in taken.values()]
            reached = 2 * (hosts - 1) / hosts * size / statistics.median(taken["ours"]) / given
            pairs = zip(taken.get("Gloo", taken["ours"]), taken["ours"], strict=True)
            ratio = statistics.median(theirs / mine for theirs, mine in pairs)
            where = f"{link.rate / 1e6:.0f} Mb/s {link.round_trip * 1e3:g} ms"
            print(f"{where:16}{hosts:6}{size / 1e6:9g}" + "".join(cells) + f"{ratio:12.2f}{reached:14.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,3")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sizes", default="0.004,1,64", help="millions of bytes")
    parser.add_argument("--links", default="1000/1,1000/20", help="megabits per second / milliseconds there and back")
    options = parser.parse_args()
    if not available():
        raise SystemExit("Networks of namespaces need Linux and root: run this in a container, as root.")
    systems = ["ours", *(["Gloo"] if peers.have("torch") else [])]
    columns = [f"{name} ms" for name in systems]
    print(
        f"{'link':16}{'hosts':>6}{'MB':>9}"
        + "".join(f"{c:>10}" for c in columns)
        + f"{'over Gloo':>12}{'of the link':>14}"
    )
    for hosts in map(int, options.hosts.split(",")):
        for text in options.links.split(","):
            rate, delay = map(float, text.split("/"))
            sizes = [round(float(size) * 1e6) // 4 * 4 for size in options.sizes.split(",")]
            measure(hosts, Link(rate * 1e6, delay / 1e3), sizes, options.turns, systems)


if __name__ == "__main__":
    main()
