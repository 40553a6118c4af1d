"""A checkpoint is of the cell's model, or is refused."""

from __future__ import annotations

import keras
import pytest

from tfos_magic.errors import TrainingError
from tfos_magic.training.checkpointing import snapshot


def _model(units: int = 4) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_a_model_that_is_made_again_is_the_same_whatever_numbers_keras_gives() -> None:
    recorded = snapshot.layout(snapshot.variables(_model()))
    again = snapshot.variables(_model())
    assert snapshot.layout(again) != recorded
    snapshot.check_layout(recorded, again)


def test_another_width_another_number_of_variables_and_another_kind_of_layer_are_refused() -> None:
    recorded = snapshot.layout(snapshot.variables(_model()))
    for other in (_model(5), keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])):
        with pytest.raises(TrainingError, match="from a different model"):
            snapshot.check_layout(recorded, snapshot.variables(other))


def test_layers_whose_numbers_changed_places_are_refused() -> None:
    def of(*names: str) -> list[keras.Variable]:
        layers = [keras.layers.Dense(3, name=name) for name in names]
        return keras.Sequential([keras.Input((3,)), *layers], name="m").variables

    recorded = snapshot.layout(of("block_1", "block_2"))
    snapshot.check_layout(recorded, of("block_4", "block_7"))
    for others in (("block_2", "block_1"), ("block_1", "block_1_2"), ("block_1", "other_2")):
        with pytest.raises(TrainingError, match="from a different model"):
            snapshot.check_layout(recorded, of(*others))
