"""Keras's preprocessing layers, adapted to rows that ranks share, have the state that one process gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.soak import every
from tests.training.conftest import Groups, succeeded
from tests.training.harness import DATA, Outcome
from tests.training.harness import FED as BATCHES

# 47 rows in batches of 10: of each, rank 0 has every other row at first and none from the third batch on, and of the
# last batch of 7 the last rank has all.
FED = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tfos_magic.training.inputs.marks import mark_sharded

draw = np.random.default_rng(2)
words = np.array(["ox", "cat", "dog", "fox", "hen", "Ant!", "bee", ""])
COLUMNS = {
    "age": draw.normal(40.0, 9.0, 47).astype("float32"),
    "pay": np.exp(draw.normal(7.0, 1.0, 47)),
    "sizes": draw.normal(5.0, 2.0, (47, 3)).astype("float32"),
    "code": draw.integers(0, 9, 47),
    "city": words[draw.integers(0, 8, 47)],
    "text": np.array([" ".join(words[draw.integers(0, 7, n)]) for n in draw.integers(1, 6, 47)]),
}


def share(batch, rows):
    if not WORLD:
        return slice(None)
    if batch < 2:
        return slice(rank, None, WORLD)
    return slice(0, rows if rank == WORLD - 1 else 0)


def feed(names, known=True):
    def batches():
        for batch, start in enumerate(range(0, 47, 10)):
            rows = {name: COLUMNS[name][start : start + 10] for name in names}
            yield {name: values[share(batch, len(values))] for name, values in rows.items()}

    spec = {name: tf.TensorSpec((None, *COLUMNS[name].shape[1:]), tf.as_dtype(COLUMNS[name].dtype)
            if COLUMNS[name].dtype.kind != "U" else tf.string) for name in names}
    made = tf.data.Dataset.from_generator(batches, output_signature=spec)
    made = made.apply(tf.data.experimental.assert_cardinality(5)) if known else made
    return mark_sharded(made, ends_alike=True) if WORLD else made


def column(name, known=True):
    return feed([name, "code"], known).map(lambda row: row[name])


def state(layer):
    if isinstance(layer, layers.Normalization):
        return [np.array(layer.mean), np.array(layer.variance)]
    if isinstance(layer, layers.Discretization):
        return [np.array(layer.bin_boundaries)]
    lookup = getattr(layer, "_lookup_layer", layer)
    return [lookup.get_vocabulary(), np.array(lookup.idf_weights_const) if lookup.output_mode == "tf_idf" else 0]


def tall(value):
    return tf.expand_dims(value, -1)
"""
RAGGED = 'column("text").map(tf.strings.split)'
ADAPTED = {
    "normalization": 'layers.Normalization(), column("sizes")',
    "normalization-streamed": 'layers.Normalization(), column("age", known=False).map(tall)',
    "normalization-one-mean": 'layers.Normalization(axis=None), column("sizes")',
    "normalization-of-float64": 'layers.Normalization(), column("pay").map(tall)',
    "normalization-filtered": 'layers.Normalization(), column("sizes").unbatch().filter(lambda row: row[0] > 5)',
    "discretization": 'layers.Discretization(num_bins=4, epsilon=0.3), column("pay")',
    "discretization-streamed": 'layers.Discretization(num_bins=9), column("age", known=False)',
    "strings": 'layers.StringLookup(), column("city", known=False)',
    "strings-few": 'layers.StringLookup(max_tokens=5, num_oov_indices=2, mask_token=""), column("city")',
    "strings-tf-idf": 'layers.StringLookup(output_mode="tf_idf"), column("city").map(tall)',
    "strings-inverted": 'layers.StringLookup(invert=True), column("city")',
    "strings-filtered": 'layers.StringLookup(), column("city").unbatch().filter(lambda city: city != "ox").batch(4)',
    "integers": 'layers.IntegerLookup(), column("code")',
    "integers-tf-idf": 'layers.IntegerLookup(output_mode="tf_idf"), column("code").map(tall)',
    "text": 'layers.TextVectorization(), column("text")',
    "text-few-ngrams": 'layers.TextVectorization(max_tokens=9, ngrams=2), column("text")',
    "text-tf-idf": 'layers.TextVectorization(output_mode="tf_idf"), column("text", known=False)',
    "text-tf-idf-padded": 'layers.TextVectorization(60, output_mode="tf_idf", pad_to_max_tokens=True), column("text")',
    "text-count": 'layers.TextVectorization(output_mode="count"), column("text")',
    "text-unsplit": 'layers.TextVectorization(split=None), column("text")',
    "words": f"layers.StringLookup(), {RAGGED}",
    "words-tf-idf": f'layers.StringLookup(output_mode="tf_idf"), {RAGGED}',
    "some-steps": 'layers.StringLookup(), column("city"), 3',
    "some-steps-of-many": 'layers.TextVectorization(), column("text").repeat(), None, 7',
    "some-bins-of-many": 'layers.Discretization(num_bins=5), column("age").repeat().prefetch(1), 7',
}
ADAPT = "states = {{}}\nfor name in {names}:\n    layer, *given = eval({cases}[name])\n    layer.adapt(*given)\n"
ADAPT += "    states[name] = state(layer)\n"
TESTED = FED + ADAPT.format(names=list(ADAPTED), cases=ADAPTED)


def both(groups: Groups, world: int, cell: str, *names: str, **run: Any) -> tuple[Outcome, list[Outcome]]:
    plain = groups.plain("WORLD = 0\n" + cell, *names)
    return plain, succeeded(groups[world].run(f"WORLD = {world}\n" + cell, *names, **run))


def assert_same(state: list[Any], expected: list[Any]) -> None:
    for mine, plain in zip(state, expected, strict=True):
        if isinstance(plain, list) and plain and isinstance(plain[0], str):
            assert mine == plain
        else:
            np.testing.assert_allclose(mine, plain, rtol=2e-6)


@pytest.mark.soak
@pytest.mark.parametrize(("world", "strategy"), every(2, [(2, "sync"), (3, "local")]))
def test_layers_adapted_to_a_feed_have_the_state_of_one_process(groups: Groups, world: int, strategy: str) -> None:
    notices: list[str] = []
    plain, outcomes = both(
        groups,
        world,
        TESTED,
        "states",
        strategy=strategy,
        on_message=lambda _, message: notices.append(getattr(message, "text", "")),
    )
    assert not [notice for notice in notices if "loops over a fed DataFrame" in notice]
    for outcome in outcomes:
        for name, expected in plain.values["states"].items():
            assert_same(outcome.values["states"][name], expected)


def test_moments_in_float64_are_those_of_one_process_to_rounding(groups: Groups) -> None:
    cell = (
        FED
        + """
keras.config.set_floatx("float64")
try:
    layer = layers.Normalization()
    layer.adapt(column("pay").map(tall))
finally:
    keras.config.set_floatx("float32")
states = state(layer)
"""
    )
    plain, outcomes = both(groups, 3, cell, "states")
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["states"], plain.values["states"], rtol=1e-13)


def test_a_feature_space_adapted_to_a_feed_encodes_as_in_one_process(groups: Groups) -> None:
    cell = (
        FED
        + """
space = keras.utils.FeatureSpace({
    "age": "float_normalized", "pay": keras.utils.FeatureSpace.float_discretized(5), "city": "string_categorical",
    "code": "integer_categorical", "text": "string_hashed"}, crosses=[("city", "code")], crossing_dim=8)
space.adapt(feed(["age", "pay", "city", "code", "text"]))
states = np.array(space({name: tf.constant(COLUMNS[name]) for name in space.features}))
"""
    )
    plain, outcomes = both(groups, 2, cell, "states")
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["states"], plain.values["states"], rtol=1e-5)


@pytest.mark.soak
def test_a_model_trains_on_a_feed_that_a_layer_was_adapted_to(groups: Groups) -> None:
    cell = (
        FED
        + """
keras.utils.set_random_seed(3)
normalize = layers.Normalization()
model = keras.Sequential([normalize, layers.Dense(4, "relu"), layers.Dense(1)])
normalize.adapt(column("sizes"))
lookup = layers.StringLookup(output_mode="one_hot")
lookup.adapt(column("city"))
model.compile("adam", "mse")
train = feed(["sizes", "age"]).map(lambda row: (row["sizes"], row["age"]))
history = model.fit(train, epochs=2, verbose=0).history
more = keras.Sequential([lookup, layers.Dense(1)])
more.compile("sgd", "mse")
cities = feed(["city", "age"]).map(lambda row: (row["city"], row["age"]))
history["more"] = more.fit(cities, epochs=2, verbose=0).history["loss"]
states = [*model.get_weights(), *more.get_weights(), history["loss"], history["more"]]
"""
    )
    plain, outcomes = both(groups, 2, cell, "states")
    for outcome in outcomes:
        for mine, expected in zip(outcome.values["states"], plain.values["states"], strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_data_that_all_ranks_have_adapt_as_they_do_in_one_process(groups: Groups) -> None:
    cell = (
        FED
        + """
states = []
for layer, data in [
    (layers.Normalization(), COLUMNS["sizes"]),
    (layers.Discretization(num_bins=4), tf.data.Dataset.from_tensor_slices(COLUMNS["age"]).batch(9)),
    (layers.TextVectorization(output_mode="tf_idf"), tf.data.Dataset.from_tensor_slices(COLUMNS["text"]).batch(9)),
]:
    layer.adapt(data)
    states += state(layer)
by_hand = layers.StringLookup()
for start in range(0, 47, 10):
    by_hand.update_state(COLUMNS["city"][start : start + 10])
by_hand.finalize_state()
states += state(by_hand)
"""
    )
    plain, outcomes = both(groups, 2, cell, "states")
    for outcome in outcomes:
        for mine, expected in zip(outcome.values["states"], plain.values["states"], strict=True):
            np.testing.assert_array_equal(mine, expected)


REFUSED = {
    "by-hand": (
        "layer = layers.StringLookup()\nfor city in column('city'):\n    layer.update_state(city)\n"
        "layer.finalize_state()",
        "Give adapt() the dataset itself",
    ),
    "collected": (
        "layers.Normalization().adapt(np.concatenate([rows.numpy() for rows in column('sizes')]))",
        "Give adapt() the dataset itself",
    ),
    "in-a-generator": (
        "layers.Discretization(num_bins=3).adapt(rows for rows in column('age'))",
        "Give adapt() the dataset itself",
    ),
    "steps-of-new-batches": ("layers.StringLookup().adapt(column('city').unbatch().batch(7), 3)", "Use only map()"),
    "some-rows": ("layers.StringLookup().adapt(column('city').unbatch().take(9).batch(3))", "Use only map()"),
    "one-document": ("layers.StringLookup(output_mode='tf_idf').adapt(column('city'))", "text[:, None]"),
    "rows-apart": ("layers.Normalization().adapt(column('age'))", "value[:, None]"),
}


@pytest.mark.parametrize("case", every(2, REFUSED))
def test_what_cannot_be_merged_is_refused_with_what_to_write_instead(groups: Groups, case: str) -> None:
    body, remedy = REFUSED[case]
    for outcome in groups[2].run(f"WORLD = 2\n{FED}{body}"):
        assert outcome.kind == "TrainingError", outcome.error
        assert remedy in outcome.error


def test_boundaries_from_batches_of_a_ranks_own_are_near_those_of_one_process_and_said_to_be(groups: Groups) -> None:
    cell = FED + (
        "layer = layers.Discretization(num_bins=4, epsilon=0.1)\n"
        "layer.adapt(column('age').unbatch().batch(5))\nstates = state(layer)"
    )
    notices: list[str] = []
    plain, outcomes = both(
        groups, 2, cell, "states", on_message=lambda _, message: notices.append(getattr(message, "text", ""))
    )
    for outcome in outcomes:
        np.testing.assert_allclose(outcome.values["states"], plain.values["states"], rtol=0.1)
        np.testing.assert_array_equal(outcome.values["states"], outcomes[0].values["states"])
    assert any("epsilon=0.1" in notice for notice in notices)


def test_normalization_takes_one_mean_over_a_column_of_scalars(groups) -> None:
    cell = (
        f"SIZE = 2\n{DATA}{BATCHES}"
        + """
layer = keras.layers.Normalization(axis=None)
layer.adapt(train.map(lambda a, b: a[:, 0]))
found = float(np.squeeze(layer.mean)), float(np.squeeze(layer.variance)), float(x[:, 0].mean()), float(x[:, 0].var())
"""
    )
    for outcome in succeeded(groups[2].run(cell, "found")):
        mean, variance, *expected = outcome.values["found"]
        np.testing.assert_allclose([mean, variance], expected, rtol=1e-5, atol=1e-6)
