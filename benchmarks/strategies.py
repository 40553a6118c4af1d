"""What the strategies send, how long they take, and how well they learn, on two hosts that a slow network connects.

Two real tasks: handwritten digits by convolutions, and the next character of this project's own texts by a GRU. Hosts
are network namespaces with a link of a rate and a delay (``network.py``; Linux, as root). Every strategy trains each
task from the same seeds on the same batches; shown are the loss on rows held back, its mean and standard deviation
over the seeds, and of all epochs but the first the bytes that a host sends in a step, how many times fewer these are
than under ``sync``, and the part of the seconds that is left for computing. Both hosts share this machine's cores with
the process that is the network.

    python benchmarks/strategies.py [--seeds 5] [--link 1000/1] [--tasks digits,text] [--steps 400]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from pathlib import Path
from typing import Any

from network import Link, Network, available
from plain import Ranks, start_process

PORT = 5000
BATCH = 64
DIGITS = """
from sklearn.datasets import load_digits
x, y = load_digits(return_X_y=True)
x = (x / 16.0).reshape(-1, 8, 8, 1).astype("float32")
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order], y[order]
held = slice(1437, None), slice(0, 1437)
model = keras.Sequential([
    keras.Input((8, 8, 1)), keras.layers.Conv2D(32, 3, activation="relu"),
    keras.layers.Conv2D(64, 3, activation="relu"),
    keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(64, activation="relu"),
    keras.layers.Dense(10)])
"""
TEXT = """
letters, codes = np.unique(np.frombuffer(text.encode("ascii", "replace"), np.uint8), return_inverse=True)
windows = np.lib.stride_tricks.sliding_window_view(codes.astype("int32"), 33)[::8]
x, y = windows[:, :-1], windows[:, 1:]
last = len(x) * 9 // 10
held = slice(last + 4, last + 404), slice(0, last)
model = keras.Sequential([
    keras.Input((32,), dtype="int32"), keras.layers.Embedding(len(letters), 32),
    keras.layers.GRU(96, return_sequences=True), keras.layers.Dense(len(letters))])
"""
FIT = """
import time
import keras
import numpy as np
import tensorflow as tf
keras.utils.set_random_seed(seed)
{task}
rows = tf.data.Dataset.from_tensor_slices((x[held[1]], y[held[1]])).shuffle(20_000, seed=seed).repeat().batch(batch)
model.compile(keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
at = []
class Mark(keras.callbacks.Callback):
    def mark(self, *_):
        at.append((collectives.sent, collectives.waited + collectives.exchanged, time.perf_counter()))
    on_train_end = mark
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.mark()
model.fit(rows, steps_per_epoch=steps // 2, epochs=3, verbose=0, callbacks=[Mark()])
sent, waited, seconds = (end - begin for begin, end in zip(*at))
sample = model.evaluate(x[held[0]], y[held[0]], batch_size=128, verbose=0), sent / steps, seconds, 1 - waited / seconds
"""
TASKS = {"digits": FIT.format(task=DIGITS), "text": FIT.format(task=TEXT)}
STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "sync": ("sync", {}),
    "sync bfloat16": ("sync", {"compression": "bfloat16"}),
    "sync float16": ("sync", {"compression": "float16"}),
    "local, 16 steps": ("local", {}),
    "local, 28, int8": ("local", {"sync_every": 28, "compression": "int8"}),
    "  of 2 fragments": ("local", {"sync_every": 28, "compression": "int8", "fragments": 2, "overlap": 2}),
    "  and outer step": (
        "local",
        {"sync_every": 28, "compression": "int8", "fragments": 2, "overlap": 2, "outer_momentum": 0.5},
    ),
}


def serve(pipe: Any, door: str, rank: int, addresses: list[str]) -> None:
    """Be a host, and train what comes through ``pipe``."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    Network.join(door, rank)
    import keras

    from tfos_magic.training.collectives import form_cluster
    from tfos_magic.training.distributed_cell import RunContext, StopSignal, distributed
    from tfos_magic.transport.messages import StrategyOptions

    collectives = form_cluster(rank, addresses, threads=1, secret="benchmark")
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            cell, strategy, given, names = pipe.recv()
            options = StrategyOptions.of(strategy, given)
            context = RunContext(
                "run", collectives, lambda message: None, StopSignal(), strategy, seed=names["seed"], options=options
            )
            namespace = {"__name__": "__main__", "collectives": collectives, **names}
            with distributed(context):
                exec(compile(cell, "<cell>", "exec"), namespace)
            pipe.send(namespace["sample"])
            keras.backend.clear_session()
    os._exit(0)


def measure(hosts: Ranks, task: str, seeds: int, names: dict[str, Any]) -> None:
    sync = 0.0
    for title, (strategy, options) in STRATEGIES.items():
        samples = [hosts.ask((TASKS[task], strategy, options, names | {"seed": seed}))[0] for seed in range(seeds)]
        losses, sent, seconds, computing = zip(*samples, strict=True)
        sync = sync or statistics.median(sent)
        loss = f"{statistics.mean(losses):8.4f} ± {statistics.pstdev(losses):.4f}"
        print(
            f"{task:8}{title:18}{loss:>18}{statistics.median(sent) / 1e3:10.2f}{sync / statistics.median(sent):8.1f}"
            f"{statistics.median(seconds) / names['steps'] * 1e3:10.1f}{statistics.median(computing):12.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=336)
    parser.add_argument("--link", default="1000/1", help="megabits per second / milliseconds there and back")
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    if not available():
        raise SystemExit("Networks of namespaces need Linux and root: run this in a container, as root.")
    texts = [(Path(__file__).parents[1] / name).read_text() for name in ("README.md", "GUIDE.md", "CONTRIBUTING.md")]
    names = {"batch": BATCH, "steps": options.steps, "text": "\n".join(texts)}
    rate, delay = map(float, options.link.split("/"))
    columns = f"{'loss':>18}{'kB a step':>10}{'fewer':>8}{'ms a step':>10}{'computing':>12}"
    print(f"{'task':8}{f'{rate:g} Mb/s, {delay:g} ms':18}" + columns)
    with Network(2, Link(rate * 1e6, delay / 1e3)) as network:
        addresses = [f"{Network.address(rank)}:{PORT + rank}" for rank in range(2)]
        with contextlib.closing(Ranks([start_process(serve, network.door, r, addresses) for r in range(2)])) as hosts:
            for task in options.tasks.split(","):
                measure(hosts, task, options.seeds, names)


if __name__ == "__main__":
    main()
