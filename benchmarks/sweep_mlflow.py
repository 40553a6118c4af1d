"""The trials of ``benchmarks/sweep.py`` by MlflowSparkStudy: a server for its study, and the process that searches.

    python benchmarks/sweep_mlflow.py TRACKING_URI ROWS.parquet EPOCHS

reads ``[trials, seed]`` from its input, line by line, and prints ``DONE`` when each is through.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DONE = "-- done --"
START_SECONDS = 120.0


@contextmanager
def server(command: Path, folder: Path) -> Iterator[str]:
    """MLflow's server at a free port; gives its address. The environment of ``command`` is that of ``make soak``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "kept")]
    place = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    log = (folder / "server.log").open("w")
    process = subprocess.Popen([str(command), "server", *options, *place], stdout=log, stderr=log)
    try:
        uri = f"http://127.0.0.1:{port}"
        _await(uri, time.monotonic() + START_SECONDS)
        yield uri
    finally:
        process.terminate()
        process.wait(30)


def _await(uri: str, deadline: float) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise TimeoutError(f"MLflow's server did not answer within {START_SECONDS:.0f} s") from None
            time.sleep(0.2)


def objective(path: str, epochs: int) -> Any:
    """A trial as plain Keras in a Python task of Spark, which reads the rows by itself, once in each process."""

    def run(trial: Any) -> float:
        import keras
        import numpy as np
        import pandas as pd
        import tensorflow as tf

        if not hasattr(keras, "benchmark_rows"):
            tf.config.threading.set_intra_op_parallelism_threads(1)  # two trials at a time on two cores
            table = pd.read_parquet(path)
            keras.benchmark_rows = np.stack(table["pixels"]), table["digit"].to_numpy()
        keras.backend.clear_session()
        x, y = keras.benchmark_rows
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        units = trial.suggest_int("units", 64, 256, step=64)
        model = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(128).prefetch(2)
        return float(model.fit(data, epochs=epochs, verbose=0).history["accuracy"][-1])

    return run


def main(uri: str, path: str, epochs: int) -> None:
    import mlflow
    import optuna
    from mlflow.optuna.storage import MlflowStorage
    from mlflow.pyspark.optuna.study import MlflowSparkStudy
    from sessions import local_session

    local_session(2)
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.create_experiment("sweep")
    for number, line in enumerate(sys.stdin):
        trials, seed = json.loads(line)
        sampler = optuna.samplers.RandomSampler(seed=seed)
        storage = MlflowStorage(experiment_id=experiment)
        study = MlflowSparkStudy(f"study {number}", storage, sampler=sampler, direction="maximize")
        study.optimize(objective(path, epochs), n_trials=trials, n_jobs=2)
        print(DONE, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
