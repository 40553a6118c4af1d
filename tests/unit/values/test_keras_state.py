"""Layers are called in the notebook and its cells what they would be called in one process."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import pytest

from tfos_magic.values import keras_state

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    keras.backend.clear_session()
    yield
    keras.backend.clear_session()


def _name() -> str:
    return str(keras.layers.Dense(1).name)


def test_names_go_on_where_a_cell_has_left_them() -> None:
    table = keras_state.names()
    assert [_name(), _name()] == ["dense", "dense_1"]
    assert table["dense"] == 2
    keras_state.go_on(table, {"dense": 5})
    assert _name() == "dense_5"
    keras_state.go_on(table, None)
    assert _name() == "dense_6"
    keras_state.go_on(table, {})
    assert _name() == "dense", "the cell cleared its session"


def test_names_that_were_given_while_a_detached_run_went_on_are_not_given_again() -> None:
    table = keras_state.names()
    names = [_name() for _ in range(4)]
    assert names[-1] == "dense_3"
    keras_state.go_on(table, {"dense": 2, "sequential": 1}, meanwhile=True)
    assert [_name(), keras.Sequential().name] == ["dense_4", "sequential_1"]


def test_names_wait_where_keras_is_not_loaded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(keras_state, "_state", lambda: None)
        keras_state.go_on(keras_state.names(), {"dense": 3})
        assert keras_state.names() == {"dense": 3}
    assert keras_state.names()["dense"] == 3
    assert _name() == "dense_3"


def test_custom_objects_of_the_main_module_are_known_in_a_cell_and_forgotten_after_it() -> None:
    made = type("Scaled", (keras.layers.Layer,), {"__module__": "__main__"})
    with keras_state.own_registry():
        keras.saving.register_keras_serializable(package="mine")(made)
        keras.saving.get_custom_objects()["of_a_package"] = keras.ops.relu
        known = keras_state.custom_objects()
    assert known["mine>Scaled"] is made
    assert "of_a_package" not in known
    assert "mine>Scaled" not in keras_state.custom_objects()
    with keras_state.own_registry():
        keras_state.register(known)
        assert keras.saving.get_registered_object("mine>Scaled") is made
