"""A run that goes on from a checkpoint ends with the weights and the history of the run that was not disturbed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.conftest import Groups, succeeded
from tests.training.harness import DATA, Outcome

MODEL = """
model = keras.Sequential(
    [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), from_logits, metrics=["accuracy"])
"""
ADAM = MODEL.replace("SGD(0.1, momentum=0.9)", "Adam(0.01)")
ARRAYS = MODEL + "history = model.fit(x, y, batch_size=29, epochs=4, validation_data=(val_x, val_y), verbose=0).history\n"
CALLBACKS = (
    MODEL
    + """
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=0.05, restore_best_weights=True)
slow = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.2)
history = model.fit(x, y, batch_size=29, epochs=9, validation_data=(val_x, val_y), verbose=0,
                    callbacks=[stop, slow]).history
"""
)
EXECUTIONS = """
model = mlp()
model.compile("adam", from_logits, metrics=["accuracy"], steps_per_execution=2)
history = model.fit(x, y, batch_size=13, epochs=3, verbose=0).history
"""
SHUFFLED = (
    ADAM
    + """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29)
history = model.fit(train, epochs=4, verbose=0).history
"""
)
NOISY = (
    MODEL
    + """
noisy = lambda a, b: (a + tf.random.normal(tf.shape(a), stddev=0.1), b)
train = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(50).batch(29).map(noisy)
history = model.fit(train, epochs=4, verbose=0).history
"""
)
REPEATED = (
    MODEL
    + """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29, drop_remainder=True).repeat()
history = model.fit(train, epochs=4, steps_per_epoch=3, verbose=0).history
"""
)
GENERATOR = (
    MODEL
    + """
def batches():
    while True:
        rows = np.random.permutation(131)[:29]
        yield x[rows], y[rows]


history = model.fit(batches(), epochs=4, steps_per_epoch=4, verbose=0).history
"""
)
PY_DATASET = (
    MODEL
    + """
class Batches(keras.utils.PyDataset):
    epoch = 0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        noise = np.random.normal(scale=0.1, size=(29, 12)).astype("float32")[: 131 - index * 29]
        return x[index * 29:(index + 1) * 29] * (1 + self.epoch / 10) + noise, y[index * 29:(index + 1) * 29]

    def on_epoch_end(self):
        self.epoch += 1


history = model.fit(Batches(), epochs=4, shuffle=True, verbose=0).history
"""
)
FED = (
    ADAM
    + """
from tfos_magic.training.sharding import mark_sharded, rank_slice


def share():
    for start in range(0, 131, 29):
        batch = x[start:start + 29], y[start:start + 29]
        begin, end = rank_slice(len(batch[0]), rank, SIZE)
        yield batch[0][begin:end], batch[1][begin:end]


spec = tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64)
fed = tf.data.Dataset.from_generator(share, output_signature=spec).apply(tf.data.experimental.assert_cardinality(5))
fed = mark_sharded(fed).cache().shuffle(3, seed=1).prefetch(2)
history = model.fit(fed, epochs=4, verbose=0).history
"""
)
DRAWING = (
    MODEL
    + """
class Jitter(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 * np.random.uniform() + 0.01 * float(keras.random.uniform([]))


history = model.fit(x, y, batch_size=29, epochs=4, verbose=0, callbacks=[Jitter()]).history
"""
)
TWO_FITS = """
model = mlp()
model.layers[0].trainable = False
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), from_logits)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(29)
first = model.fit(train, epochs=3, verbose=0)
between = [float(model.evaluate(val_x, val_y, verbose=0)), float(np.random.uniform())]
model.layers[0].trainable = True
model.compile("adam", from_logits)
history = model.fit(train, epochs=4, verbose=0).history
history.update(first=first.history["loss"], between=between)
"""
WEIGHTS = "weights = model.get_weights()\n"


def undisturbed(
    groups: Groups, size: int, cell: str, every: int = 0, strategy: str = "sync"
) -> tuple[list[Outcome], list[Any]]:
    """Run a cell to its end; gives the outcomes and the parts of all checkpoints that were taken on the way."""
    parts: list[Any] = []

    def collect(rank: int, message: Any) -> None:
        if type(message).__name__ == "CheckpointPart":
            parts.append(message)

    outcomes = groups[size].run(
        cell, "weights", "history", checkpoints={"asked": True, "every": every}, on_message=collect, strategy=strategy
    )
    return succeeded(outcomes), parts


def resume(
    groups: Groups, size: int, cell: str, parts: list[Any], at: str, strategy: str = "sync", *names: str
) -> list[Outcome]:
    """Run a cell on from the checkpoint ``at``, in processes that know nothing else of the run before."""
    fit = int(at[3])
    chosen = [p for p in parts if p.name.startswith((f"{at}-", *(f"fit{k}-end-" for k in range(fit))))]
    assert any(p.name.startswith(f"{at}-") for p in chosen), f"no {at} among {sorted({p.name for p in parts})}"
    return groups[size].run(
        cell, "weights", "history", *names, checkpoints={"asked": True}, resume=chosen, strategy=strategy
    )


def assert_equal(resumed: list[Outcome], full: list[Outcome], tolerance: float = 1e-6) -> None:
    for after, before in zip(succeeded(resumed), full, strict=True):
        for mine, whole in zip(after.values["weights"], before.values["weights"], strict=True):
            assert np.isfinite(whole).all()
            assert np.abs(mine - whole).max() <= tolerance
        assert after.values["history"].keys() == before.values["history"].keys()
        for name, values in before.values["history"].items():
            np.testing.assert_allclose(after.values["history"][name], values, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("size", "fit", "every", "at"),
    [
        (1, ARRAYS, 0, "fit0-epoch2-step0"),
        (2, ARRAYS, 0, "fit0-epoch2-step0"),
        (3, ARRAYS, 3, "fit0-epoch1-step4"),
        (1, CALLBACKS, 3, "fit0-epoch3-step3"),
        (2, CALLBACKS, 0, "fit0-epoch3-step0"),
        (2, EXECUTIONS, 4, "fit0-epoch1-step4"),
        (1, SHUFFLED, 3, "fit0-epoch2-step2"),
        (2, SHUFFLED, 0, "fit0-epoch3-step0"),
        (2, NOISY, 3, "fit0-epoch2-step2"),
        (2, REPEATED, 2, "fit0-epoch2-step2"),
        (2, GENERATOR, 3, "fit0-epoch2-step1"),
        (1, PY_DATASET, 0, "fit0-epoch2-step0"),
        (2, PY_DATASET, 3, "fit0-epoch1-step4"),
        (2, FED, 0, "fit0-epoch3-step0"),
        (2, DRAWING, 0, "fit0-epoch2-step0"),
        (1, TWO_FITS, 0, "fit1-epoch2-step0"),
        (2, TWO_FITS, 0, "fit1-epoch2-step0"),
    ],
)
def test_a_resumed_run_equals_the_undisturbed_one(groups: Groups, size: int, fit: str, every: int, at: str) -> None:
    cell = f"SIZE = {size}\n" + DATA + fit + WEIGHTS
    full, parts = undisturbed(groups, size, cell, every)
    print(sorted({p.name[:-9] for p in parts}))
    assert_equal(resume(groups, size, cell, parts, at), full)
