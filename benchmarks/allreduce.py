"""All-reduce of float32 among processes of this machine: bytes per second, beside PyTorch's Gloo and TensorFlow's own.

Ours travels once in shared memory, and over TCP between addresses of the loopback that stand for hosts, as it is and
encrypted. Gloo is ``torch.distributed.all_reduce``, MultiWorkerMirroredStrategy its replicas' ``all_reduce``, both on
the same loopback. For small sums of two ranks a bare socket swaps as many bytes. Sums of TensorFlow follow each other
in a graph, as in training: up to eight small ones in one call of it. All take turns in one run; shown are medians over
the turns, and ratios to Gloo within a turn.

    python benchmarks/allreduce.py [--ranks 2] [--turns 5] [--sizes 0.004,0.064,1,4,16,64,256]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import peers
from plain import Ranks, free_addresses, start_process

from tfos_magic.transport.identity import Authority, Identity, worker_name

SUMS = 8
SUMS_BYTES = 16_000_000

Reduce = Callable[[], Any]
Maker = Callable[[int, int], Reduce]


def ours(rank: int, addresses: list[str], identity: Identity | None = None) -> Maker:
    import tensorflow as tf

    from tfos_magic.training.collectives import form_cluster
    from tfos_magic.transport.tls import TlsPeers

    tls = TlsPeers(identity, [worker_name(peer) for peer in range(len(addresses))]) if identity else None
    collectives = form_cluster(rank, addresses, threads=1, secret="benchmark", timeout=200, tls=tls)

    def make(count: int, sums: int) -> Reduce:
        def reduce() -> Any:
            vector = ones
            for _ in range(sums):
                (vector,) = collectives.all_reduce([vector])
            return vector

        ones = tf.ones([count])
        return tf.function(reduce, autograph=False)

    return make


def gloo(rank: int, addresses: list[str]) -> Maker:
    peers.use()
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}", rank=rank, world_size=len(addresses)
    )

    def make(count: int, sums: int) -> Reduce:
        def reduce() -> None:
            for _ in range(sums):
                torch.distributed.all_reduce(vector)

        vector = torch.zeros(count)
        return reduce

    return make


def mirrored(rank: int, addresses: list[str]) -> Maker:
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def make(count: int, sums: int) -> Reduce:
        def reduce() -> Any:
            vector = ones
            for _ in range(sums):
                vector = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)
            return vector

        ones = tf.ones([count])
        return tf.function(lambda: strategy.run(reduce), autograph=False)

    return make


def bare(rank: int, addresses: list[str]) -> Maker:
    host, port = addresses[0].rsplit(":", 1)
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            connection = listener.accept()[0]
    else:
        connection = _connected(host, int(port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def make(count: int, sums: int) -> Reduce:
        def reduce() -> None:
            for _ in range(sums):
                connection.sendall(sent)
                view = memoryview(taken)
                while view:
                    view = view[connection.recv_into(view) :]

        sent, taken = bytes(count * 4), bytearray(count * 4)
        return reduce

    return make


def _connected(host: str, port: int) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, port))
        time.sleep(0.01)


BARE = "bare socket"
SYSTEMS: dict[str, tuple[Callable[..., Maker], bool]] = {
    "ours, memory": (ours, False),
    "ours, TCP": (ours, True),
    "ours, TLS": (ours, True),
    "Gloo": (gloo, False),
    "MultiWorker": (mirrored, False),
    BARE: (bare, False),
}
BARE_BYTES = 64_000  # what a connection holds on its way, so that both ends may send first


def serve(pipe: Any, system: str, rank: int, addresses: list[str], identities: list[Identity]) -> None:
    """Time all-reduces of the sizes that come through ``pipe``."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    make = SYSTEMS[system][0](rank, addresses, *identities)
    made: dict[int, Reduce] = {}
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            count, repeats = pipe.recv()
            sums = max(1, min(SUMS, SUMS_BYTES // (count * 4)))
            reduce = made[count] = made.get(count) or make(count, sums)
            reduce()
            began = time.perf_counter()
            for _ in range(repeats):
                reduce()
            pipe.send((time.perf_counter() - began) / (repeats * sums))
            made = {count: reduce}
    os._exit(0)


class Running(Ranks):
    """The processes of a system."""

    def __init__(self, system: str, ranks: int) -> None:
        addresses = free_addresses(ranks, SYSTEMS[system][1])
        authority = Authority()
        started = [
            start_process(
                serve,
                system,
                rank,
                addresses,
                [authority.identify(worker_name(rank))] if system == "ours, TLS" else [],
            )
            for rank in range(ranks)
        ]
        super().__init__(started)

    def seconds(self, size: int, repeats: int) -> float:
        return max(self.ask((size // 4, repeats)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--sizes", default="0.004,0.064,1,4,16,64,256", help="in MB of 10^6 bytes")
    options = parser.parse_args()
    left_out = {"Gloo": not peers.have("torch"), BARE: options.ranks != 2}
    names = [name for name in SYSTEMS if not left_out.get(name)]
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(contextlib.closing(Running(name, options.ranks))) for name in names}
        print(f"all-reduce of float32, {options.ranks} ranks, {os.cpu_count()} cores: MB/s, below 1 MB us (over Gloo)")
        print(f"{'':>8}" + "".join(f"{name:>22}" for name in names))
        for size in (int(float(text) * 1e6) for text in options.sizes.split(",")):
            show(size, running, options.turns)


def show(size: int, running: dict[str, Running], turns: int) -> None:
    repeats = max(1, min(20 if size >= 1e6 else 200, 64_000_000 // size))
    names = [name for name in running if name != BARE or size <= BARE_BYTES]
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order:
            taken[name].append(running[name].seconds(size, repeats))
    cells = map(partial(cell, size, taken.get("Gloo")), taken.values())
    print(f"{f'{size / 1e6:g} MB':>8}" + "".join(f"{text:>22}" for text in cells), flush=True)


def cell(size: int, gloo_taken: list[float] | None, taken: list[float]) -> str:
    seconds = statistics.median(taken)
    pace = f"{size / 1e6 / seconds:,.0f}" if size >= 1e6 else f"{seconds * 1e6:,.0f} us"
    if gloo_taken is None:
        return pace
    ratio = statistics.median(theirs / mine for theirs, mine in zip(gloo_taken, taken, strict=True))
    return f"{pace} ({ratio:.2f})"


if __name__ == "__main__":
    main()
