"""Steps of one's own are tried again: what the first batch does not show is found when it shows, and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import assert_same_weights, succeeded
from tests.training.harness import DATA

BEGIN = """
x = np.random.default_rng(0).normal(size=(192, 12))
total = x.sum(1, keepdims=True)
missing = total.copy()
missing[[100, 121, 122, 150, 160]] = np.nan
strength = tf.Variable(0.0, name="strength")


class Own(keras.Model):
    def __init__(self, value, eager=False):
        super().__init__()
        self.net = keras.Sequential([keras.Input((12,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
        self.seen, self.value, self.phase, self.steps = keras.metrics.Mean(name="loss"), value, 0, 0
        self.compile(keras.optimizers.Adam(0.05), run_eagerly=eager)

    @property
    def metrics(self):
        return [self.seen]

    def train_step(self, data):
        rows, truth = data
        self.steps += 1
        with tf.GradientTape() as tape:
            loss = self.value(self, tf.cast(truth, "float32"), self.net(rows))
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.net.trainable_variables))
        self.seen.update_state(loss)
        return {"loss": self.seen.result()}


def known(model, truth, made):
    is_known = tf.math.is_finite(truth)
    return tf.reduce_mean(tf.square(tf.boolean_mask(truth, is_known) - tf.boolean_mask(made, is_known)))


def flooded(model, truth, made):
    return tf.abs(tf.reduce_mean((truth / 3 - made) ** 2) - 0.1) + 0.1


def warming(model, truth, made):
    return tf.reduce_mean((truth - made) ** 2) + strength * tf.math.reduce_std(made)


def adds_up_later(model, truth, made):
    errors = (truth - made) ** 2
    return tf.reduce_sum(errors) / 16 if model.phase else tf.reduce_mean(errors)


def mixes_later(model, truth, made):
    return tf.reduce_mean((truth - made) ** 2) + (tf.math.reduce_std(made) if model.phase else 0.0)


def in_turn(model, truth, made):
    return tf.reduce_mean((truth - made) ** 2) + (0.0 if model.steps % 2 else tf.math.reduce_std(made))


class EachEpoch(keras.callbacks.Callback):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_epoch_begin(self, epoch, logs=None):
        self.change(self.model, epoch)


set_phase = EachEpoch(lambda model, epoch: setattr(model, "phase", int(epoch > 1)))
set_strength = EachEpoch(lambda model, epoch: strength.assign(0.2 * epoch))


def fit(model, labels, epochs=4, **kwargs):
    model.fit(x, labels, batch_size=16, epochs=epochs, verbose=0, shuffle=False, **kwargs)
    return model


"""
REFUSED = {
    "missing labels": ("fit(Own(known), missing)", "in the first step. In step"),
    "flooding": ("fit(Own(flooded), total, 20)", "mixes the rows"),
    "warm-up": ("fit(Own(warming), total, callbacks=[set_strength])", "mixes the rows"),
    "phases": ("fit(Own(mixes_later, True), total, callbacks=[set_phase])", "In step 1 of epoch 3"),
    "another fit": (
        "model = fit(Own(mixes_later, True), total, 1)\nmodel.phase = 1\nfit(model, total)",
        "In step 1 of epoch 1",
    ),
    "in turn": ("fit(Own(in_turn, True), total)", "In step 2 of epoch 1"),
}


@pytest.mark.soak
@pytest.mark.parametrize("case", every(12, REFUSED))
def test_a_step_that_mixes_rows_later_is_refused_when_it_does(groups: Any, case: str) -> None:
    cell, words = REFUSED[case]
    for outcome in groups[2].run(DATA + BEGIN + cell):
        assert outcome.kind == "TrainingError", outcome.error
        assert words in outcome.error
        assert "the weights would differ from those of one process" in outcome.error


@pytest.mark.soak
def test_a_phase_that_begins_with_an_epoch_may_be_a_sum(groups: Any) -> None:
    cell = DATA + BEGIN + "weights = fit(Own(adds_up_later, True), total, callbacks=[set_phase]).get_weights()"
    expected = groups.plain(cell, "weights").values["weights"]
    assert_same_weights(succeeded(groups[2].run(cell, "weights")), expected, 1e-5)


@pytest.mark.soak
def test_steps_that_stay_what_they_are_go_on_as_in_one_process(groups: Any) -> None:
    cell = (
        DATA
        + BEGIN
        + """
def regularized(model, truth, made):
    return tf.reduce_mean((truth - made) ** 2) + 0.01 * tf.reduce_mean(tf.square(model.net.layers[0].kernel))


model = Own(regularized)
fit(model, total, 3)
fit(model, total, 20)
weights, steps = model.get_weights(), int(model.optimizer.iterations)
"""
    )
    expected = groups.plain(cell, "weights", "steps").values
    outcomes = succeeded(groups[2].run(cell, "weights", "steps"))
    assert_same_weights(outcomes, expected["weights"], 1e-4)
    assert {outcome.values["steps"] for outcome in outcomes} == {expected["steps"]} == {np.int64(23 * 12)}
