"""Seconds that the check before a model's first step takes, beside the first step that follows it.

Two workers without Spark, on the models of ``training.py`` and a large one, each with Keras's own step and with a
``train_step`` of its own, of which more is tried. Shown are medians of new models, of the slower worker; the first
model of a process, for which TensorFlow loads its operations, stands apart.

    python benchmarks/first_check.py [--turns 5] [--batch 128]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics

from models import CNN, EMBEDDING, PIXELS, TOKENS, WIDE_MLP
from training import OURS, Running

LARGE = """(lambda ids: keras.Model(ids, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(functools.reduce(
    lambda x, _: (lambda x: keras.layers.LayerNormalization()(
        x + keras.layers.Dense(256)(keras.layers.Dense(1024, activation="gelu")(x))))(
        keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(8, 32)(x, x))),
    range(6), keras.layers.Embedding(20000, 256)(ids))))))(keras.Input((40,), dtype="int32"))"""
OWN_STEP = """
class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}
model = Own(model.inputs, model.outputs)
"""
CELL = """
import functools, time
import keras
import numpy as np
import tensorflow as tf
from tfos_magic.training.firststep.check import FirstStep
random = np.random.default_rng(0)
x, y = {inputs}, random.integers(0, 10, rows)
model = {model}
{own_step}
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
original, checked = FirstStep._check, []
def timed(*arguments):
    began = time.perf_counter()
    original(*arguments)
    checked.append(time.perf_counter() - began)
class OneStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True
FirstStep._check = timed
try:
    began = time.perf_counter()
    model.fit(x, y, batch_size=batch, epochs=1, verbose=0, callbacks=[OneStep()])
finally:
    FirstStep._check = original
sample = (checked[0], time.perf_counter() - began - checked[0])
"""
CASES = {"MLP": (WIDE_MLP, PIXELS), "CNN": (CNN, PIXELS), "embedding": (EMBEDDING, TOKENS), "large": (LARGE, TOKENS)}


def measure(processes: Running, cell: str, names: dict[str, int]) -> tuple[float, float]:
    """Seconds of the check and of the step, of the slower rank each."""
    checks, steps = zip(*processes.ask((cell, names)), strict=True)
    return max(checks), max(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = {"rows": 4 * options.batch, "batch": options.batch}
    print(f"{'model':12}{'step':10}{'check, first':>14}{'check':>8}{'first step':>12}    aim")
    for name, (model, inputs) in CASES.items():
        for step, source in (("Keras's", ""), ("its own", OWN_STEP)):
            cell = CELL.format(model=model, inputs=inputs, own_step=source)
            with contextlib.closing(Running(OURS[0])) as processes:
                first, *later = [measure(processes, cell, names) for _ in range(1 + options.turns)]
            check, taken = (statistics.median(seconds) for seconds in zip(*later, strict=True))
            aim = 1.0 if name == "large" else 0.3
            print(f"{name:12}{step:10}{first[0]:14.2f}{check:8.2f}{taken:12.2f}{aim:7.1f}", flush=True)


if __name__ == "__main__":
    main()
