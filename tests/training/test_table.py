"""The promise of strategy ``sync`` as a table of losses, models and optimizers, some on one, two and three workers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from tests.soak import every
from tests.training.harness import DATA

FIT = "history = model.fit(x, y, batch_size=29, epochs=2, {options}verbose=0).history\n"
WEIGHTS = "weights = model.get_weights()\n"
VALID = "validation_data=(val_x, val_y), "
MLP = "model = mlp()\n"
ONE_HOT = "y = np.eye(3, dtype='float32')[y]\n"
SOFT = "model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, 'softmax')])\n" + ONE_HOT
TOKENS = "tokens = np.random.default_rng(2).integers(0, 20, (131, 7)); tokens[:, 4:] *= (y > 0)[:, None]\n"
TAGGER = (
    TOKENS
    + "x, y = tokens, tokens % 3\n"
    + "model = keras.Sequential([keras.Input((7,), dtype='int32'), keras.layers.Embedding(20, 6, mask_zero=True),"
    + " keras.layers.Dense(3)])\n"
)


@dataclass(frozen=True)
class Case:
    """Compared on ``size`` workers. ``bound`` is larger than 1e-5 only where the order of float additions makes it so,
    as the comment beside says.
    """

    model: str
    compile: str
    options: str = ""
    before: str = ""
    bound: float = 1e-5
    size: int = 2


MASKED = "keras.losses.SparseCategoricalCrossentropy(True, reduction='mean_with_sample_weight')"
TWO = """
left, right = keras.Input((5,), name="left"), keras.Input((7,), name="right")
joined = keras.layers.Concatenate()([left, right])
model = keras.Model([left, right], {"a": keras.layers.Dense(3)(joined), "b": keras.layers.Dense(1)(joined)})
x, y = {"left": x[:, :5], "right": x[:, 5:]}, {"a": y, "b": y[:, None].astype("float32")}
"""
SUBCLASSED = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)

    def call(self, inputs, training=False):
        hidden = self.hidden(inputs)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        return self.out(hidden)


model = Net()
"""
OWN_STEP = """
class Net(keras.Sequential):
    def train_step(self, data):
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(inputs, targets, self(inputs, training=True), weights)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([0.5 * g for g in gradients], self.trainable_variables)
        self.mine.update_state(loss)
        return {"mine": self.mine.result()}

    @property
    def metrics(self):
        return [self.mine]


model = Net([keras.Input((12,)), keras.layers.Dense(3)])
model.mine = keras.metrics.Mean("mine")
"""
REGULARISED = """
model = keras.Sequential([
    keras.Input((12,)),
    keras.layers.Dense(8, "relu", kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(0.01)),
    keras.layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(0.5)),
])
"""
NORMALISED = """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.BatchNormalization(),
                          keras.layers.LayerNormalization(), keras.layers.ReLU(), keras.layers.Dense(3)])
"""
RECURRENT = (
    TOKENS
    + """
x = tokens
model = keras.Sequential([keras.Input((7,), dtype="int32"), keras.layers.Embedding(20, 6, mask_zero=True),
                          keras.layers.LSTM(5), keras.layers.Dense(3)])
"""
)


def optimizer(text: str) -> Case:
    """The optimizer ``text`` of Keras on a plain model, its metrics and validation. It sees one gradient, of any N."""
    return Case(MLP, f"keras.optimizers.{text}, from_logits, metrics=['accuracy']", VALID, size=2)


CASES = {
    "loss sum": Case(MLP, "'adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='sum')"),
    "loss none": Case(
        MLP, "keras.optimizers.SGD(0.003), keras.losses.SparseCategoricalCrossentropy(True, reduction=None)"
    ),
    "loss mean by weights": Case(
        MLP, f"'adam', {MASKED}, weighted_metrics=['accuracy']", "sample_weight=np.linspace(0.1, 2, 131), "
    ),
    "loss masked": Case(TAGGER, "'adam', from_logits, metrics=['accuracy'], weighted_metrics=['accuracy']"),
    "loss masked and weighted": Case(
        TAGGER,
        "'adam', from_logits, weighted_metrics=['accuracy']",
        "sample_weight=np.linspace(0.1, 2, 131)[:, None] * np.ones((1, 7)), ",
    ),
    "loss masked, mean by weights": Case(TAGGER, f"'adam', {MASKED}"),
    "loss Dice": Case(SOFT, "'adam', keras.losses.Dice()"),
    "loss Tversky": Case(SOFT, "'adam', keras.losses.Tversky(alpha=0.3, beta=0.7)"),
    "class weights": Case(MLP, "'adam', from_logits", "class_weight={0: 1.0, 1: 2.0, 2: 0.5}, "),
    "SGD, Nesterov, clipnorm": optimizer("SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.1)"),
    "RMSprop, centered": optimizer("RMSprop(0.01, centered=True, momentum=0.5)"),
    "Adam, amsgrad, clipvalue": optimizer("Adam(0.01, amsgrad=True, clipvalue=0.01)"),
    "AdamW, global_clipnorm, EMA": optimizer(
        "AdamW(0.01, weight_decay=0.01, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3)"
    ),
    "Adadelta": optimizer("Adadelta(1.0)"),
    "Adagrad": optimizer("Adagrad(0.05)"),
    "Adamax": optimizer("Adamax(0.01)"),
    "Adafactor": optimizer("Adafactor(0.01)"),
    "Nadam": optimizer("Nadam(0.01)"),
    "Ftrl": optimizer("Ftrl(0.05, l1_regularization_strength=0.01)"),
    "Lion": optimizer("Lion(0.001)"),
    "Lamb": optimizer("Lamb(0.01)"),
    "Muon": optimizer("Muon(0.01)"),
    # Keras begins it anew in each step of the first epoch, unless it was built before the step was traced.
    "ScheduleFreeAdamW": Case(
        MLP,
        "keras.optimizers.ScheduleFreeAdamW(0.01), from_logits",
        before="model.optimizer.build(model.trainable_variables)\n",
    ),
    "a schedule, accumulation": optimizer(
        "SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.8), gradient_accumulation_steps=2)"
    ),
    "LossScaleOptimizer": optimizer("LossScaleOptimizer(keras.optimizers.SGD(0.1), dynamic_growth_steps=3)"),
    "two inputs, two outputs": Case(TWO, "'adam', {'a': from_logits, 'b': 'mse'}, loss_weights={'a': 1.0, 'b': 0.3}"),
    "subclassed, add_loss": Case(SUBCLASSED, "'adam', from_logits, metrics=['accuracy']", VALID),
    "own train_step": Case(OWN_STEP, "'adam', from_logits", "sample_weight=np.linspace(0.1, 2, 131), "),
    "regularizers, constraint": Case(REGULARISED, "keras.optimizers.SGD(0.1), from_logits", VALID),
    "normalisation, eager": Case(NORMALISED, "keras.optimizers.SGD(0.05), from_logits, run_eagerly=True"),
    "normalisation, 3 steps at once": Case(
        NORMALISED, "keras.optimizers.SGD(0.05), from_logits, steps_per_execution=3"
    ),
    "embedding, mask, recurrent": Case(RECURRENT, "'adam', from_logits"),
    **{
        f"embedding, {name}": Case(RECURRENT, f"keras.optimizers.{text}, from_logits")
        for name, text in {
            "SGD with momentum": "SGD(0.1, momentum=0.9, clipnorm=0.5)",
            "Adagrad": "Adagrad(0.05)",
            "RMSprop": "RMSprop(0.01)",
        }.items()
    },
}


def cell_of(case: Case) -> str:
    compiled = f"model.compile({case.compile})\n" + case.before
    return DATA + case.model + compiled + FIT.format(options=case.options) + WEIGHTS


ON_ALL_SIZES = ("loss masked and weighted", "AdamW, global_clipnorm, EMA", "own train_step", "normalisation, eager")


@pytest.mark.parametrize(
    ("name", "size"),
    every(
        48, sorted({*((name, case.size) for name, case in CASES.items()), *itertools.product(ON_ALL_SIZES, (1, 2, 3))})
    ),
)
def test_the_weights_and_history_are_those_of_one_process(same_as_plain, name: str, size: int) -> None:
    same_as_plain(cell_of(CASES[name]), size, tolerance=CASES[name].bound)
