"""The promise of strategy ``sync`` as a table: model, input and optimizer, each on one, two and three workers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.training.harness import DATA

FIT = "history = model.fit(x, y, batch_size=29, epochs=2, {options}verbose=0).history\n"
WEIGHTS = "weights = model.get_weights()\n"
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
    """``bound`` is larger than 1e-5 only where the order of float additions makes it so, as the comment beside says."""

    model: str
    compile: str
    options: str = ""
    data: str = ""
    bound: float = 1e-5


CASES = {
    "loss sum": Case(MLP, "'adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='sum')"),
    "loss none": Case(
        MLP, "keras.optimizers.SGD(0.003), keras.losses.SparseCategoricalCrossentropy(True, reduction=None)"
    ),
    "loss mean by weights": Case(
        MLP,
        "'adam', keras.losses.SparseCategoricalCrossentropy(True, reduction='mean_with_sample_weight'),"
        " weighted_metrics=['accuracy']",
        "sample_weight=np.linspace(0.1, 2, 131), ",
    ),
    "loss masked": Case(TAGGER, "'adam', from_logits, metrics=['accuracy'], weighted_metrics=['accuracy']"),
    "loss masked and weighted": Case(
        TAGGER,
        "'adam', from_logits, weighted_metrics=['accuracy']",
        "sample_weight=np.linspace(0.1, 2, 131)[:, None] * np.ones((1, 7)), ",
    ),
    "loss masked, mean by weights": Case(
        TAGGER,
        "'adam', keras.losses.SparseCategoricalCrossentropy(True, reduction='mean_with_sample_weight')",
    ),
    "loss Dice": Case(SOFT, "'adam', keras.losses.Dice()"),
    "loss Tversky": Case(SOFT, "'adam', keras.losses.Tversky(alpha=0.3, beta=0.7)"),
}


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_weights_and_history_are_those_of_one_process(same_as_plain, name: str, size: int) -> None:
    case = CASES[name]
    cell = DATA + case.model + case.data + f"model.compile({case.compile})\n" + FIT.format(options=case.options)
    same_as_plain(cell + WEIGHTS, size, tolerance=case.bound)
