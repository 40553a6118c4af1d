"""Trials per minute of a sweep on two workers, beside the same cells one after another, and beside MlflowSparkStudy.

All search at random over the same space with the same cell, on the same rows and the same two cores, in turns: a sweep
with a trial on each of two workers, one worker that runs a cell for each trial, and MLflow's study on Spark, whose
trials are plain Keras in Python tasks and whose server is in an environment of its own. Each has run two trials before,
so that TensorFlow is loaded and rows are where they are read. Ratios are taken within a turn; shown are medians.

What two at a time can be worth here at most is shown by plain Keras on the same rows, in two processes of a core each
and in one: they share no work, but the cores share caches, memory and, on many machines, arithmetic units.

Then, on a search whose answer is known, what ASHA leaves out: epochs trained, and whether the best trial is the same.

    python benchmarks/sweep.py [--turns 3] [--trials 12] [--no-mlflow]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sweep_mlflow
from plain import PlainProcess, plain_processes
from sessions import local_session

ROOT = Path(__file__).resolve().parent.parent
CEILING = "plain Keras in two processes", "plain Keras in one"
AIMS = {"cells one after another": 1.8, "MlflowSparkStudy": 1.5}
CELL = """
import keras
rate = tfos.suggest_float("rate", 1e-4, 1e-1, log=True)
units = tfos.suggest_int("units", 64, 256, step=64)
model = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, verbose=0);
"""
INPUTS = """
import tensorflow as tf
def train(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(128).prefetch(2)
"""
# A weight that goes from 0 to 1: the larger the rate, the smaller its loss after any epoch.
KNOWN = """
import keras, numpy as np
rate = tfos.suggest_float("rate", 1e-3, 0.1, log=True)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(keras.optimizers.SGD(rate), "mse")
ones = np.ones((4, 1))
model.fit(ones, ones, batch_size=4, epochs=27, verbose=0);
"""


def rows(count: int, path: Path) -> str:
    """Digits that are made up: noise around one of ten points."""
    random = np.random.default_rng(0)
    centres, digits = random.normal(size=(10, 64)), random.integers(0, 10, count)
    pixels = (centres[digits] + random.normal(size=(count, 64))).astype("float32")
    pd.DataFrame({"pixels": list(pixels), "digit": digits}).to_parquet(path / "rows.parquet")
    return str(path / "rows.parquet")


def swept(cluster: Any, cell: str, options: dict[str, Any]) -> Callable[[int, int], None]:
    def run(trials: int, seed: int) -> None:
        search = {"sampler": "random", "seed": seed, "metric": "accuracy"}
        study = cluster.sweep(cell, trials=trials, **search, **options).wait()
        assert all(trial.state.name == "COMPLETE" for trial in study.trials)

    return run


def one_after_another(cluster: Any, cell: str, options: dict[str, Any]) -> Callable[[int, int], None]:
    import optuna

    from tfos_magic.values.suggestions import choosing

    def run(trials: int, seed: int) -> None:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=seed))
        for _ in range(trials):
            trial = study.ask()
            chosen = {"rate": trial.suggest_float("rate", 1e-4, 1e-1, log=True)}
            chosen["units"] = trial.suggest_int("units", 64, 256, step=64)
            with choosing(chosen):
                cell_run = cluster.submit(cell, seed=seed, **options)
            cell_run.wait()
            study.tell(trial, cell_run.history["accuracy"].iloc[-1])

    return run


@contextmanager
def mlflow_study(path: str, epochs: int, folder: Path) -> Iterator[Callable[[int, int], None]]:
    """A process that searches with MlflowSparkStudy, and the server that keeps its study."""
    with sweep_mlflow.server(ROOT / ".venv-mlflow" / "bin" / "mlflow", folder) as uri:
        command = [sys.executable, sweep_mlflow.__file__, uri, path, str(epochs)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None

        def run(trials: int, seed: int) -> None:
            process.stdin.write(json.dumps([trials, seed]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.strip() == sweep_mlflow.DONE:
                    return
            raise RuntimeError("MlflowSparkStudy ended by an error")

        try:
            yield run
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def plain_keras(processes: list[PlainProcess], cell: str, path: str) -> Callable[[int, int], None]:
    """The cell as it is, with its numbers in the place of what it asks for, on whichever process is free."""
    table = pd.read_parquet(path)
    names = {"x": np.stack(table["pixels"]), "y": table["digit"].to_numpy()}
    asked = {'tfos.suggest_float("rate", 1e-4, 1e-1, log=True)': "1e-3"}
    asked |= {'tfos.suggest_int("units", 64, 256, step=64)': "128", "fit(train, ": "fit(train(x, y), "}
    for old, new in asked.items():
        assert old in cell
        cell = cell.replace(old, new)

    def run(trials: int, seed: int) -> None:
        for _ in range(trials // len(processes)):
            for process in processes:
                process.begin(INPUTS + cell, names, "rate")
            for process in processes:
                process.finish()

    return run


def compare(systems: dict[str, Callable[[int, int], None]], trials: int, turns: int) -> None:
    """Print trials per minute, and how many times those of each other system the sweep has."""
    for run in systems.values():
        run(2, 0)
    taken: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(turns):
        for name, run in systems.items():
            began = time.perf_counter()
            run(trials, turn + 1)
            taken[name].append(time.perf_counter() - began)
            print(f"turn {turn + 1}: {name}: {60 * trials / taken[name][-1]:.1f} trials a minute", flush=True)
    first = next(iter(systems))
    for name, seconds in taken.items():
        ratio = statistics.median(other / mine for mine, other in zip(taken[first], seconds, strict=True))
        aim = f" (aim {AIMS[name]})" if name in AIMS else ""
        median = 60 * trials / statistics.median(seconds)
        print(
            f"{name}: {median:.1f} trials a minute"
            + ("" if name == first else f", the sweep has {ratio:.2f} times{aim}")
        )
    two, one = (taken[name] for name in CEILING)
    most = statistics.median(alone / together for alone, together in zip(one, two, strict=True))
    print(f"plain Keras in two processes has {most:.2f} times the trials a minute of one")


def prune(cluster: Any, trials: int) -> None:
    """Print what ASHA leaves out of a search whose best trial is known beforehand."""
    epochs, best = {}, {}
    for pruner in ("none", "asha"):
        sweep = cluster.sweep(KNOWN, trials=trials, metric="loss", sampler="random", pruner=pruner, seed=4)
        study = sweep.wait()
        epochs[pruner] = sum(len(trial.run.state.history) for trial in sweep.trials)
        best[pruner] = study.best_params["rate"]
        known = max(trial.params["rate"] for trial in study.trials)
        print(f"{pruner}: {epochs[pruner]} epochs, best rate {best[pruner]:.4f}, the best there is {known:.4f}")
    print(f"ASHA leaves out {100 * (1 - epochs['asha'] / epochs['none']):.0f} % of the epochs (aim 40 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--no-mlflow", action="store_true")
    args = parser.parse_args()
    from tfos_magic import TFCluster

    with tempfile.TemporaryDirectory() as folder:
        path, cell = rows(args.rows, Path(folder)), CELL.replace("EPOCHS", str(args.epochs))
        spark = local_session(5)
        options = {"frames": {"train": spark.read.parquet(path)}, "label": "digit", "batch_size": 128}
        with (
            TFCluster(spark, workers=2) as two,
            TFCluster(spark, workers=1) as one,
            plain_processes(2, threads=1) as both,
        ):
            systems = {"sweep": swept(two, cell, options)}
            systems["cells one after another"] = one_after_another(one, cell, options)
            systems[CEILING[0]] = plain_keras(both, cell, path)
            systems[CEILING[1]] = plain_keras(both[:1], cell, path)
            with suppress(ImportError) if args.no_mlflow else mlflow_study(path, args.epochs, Path(folder)) as mlflow:
                if mlflow is not None:
                    systems["MlflowSparkStudy"] = mlflow
                compare(systems, args.trials, args.turns)
            prune(two, 2 * args.trials)


if __name__ == "__main__":
    main()
