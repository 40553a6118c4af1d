"""What a run changes is known, there, and put back exactly as it was, inherited attributes not copied."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tfos_magic.training.keras_seam import seams
from tfos_magic.training.keras_seam.seams import Seam, replace, wrap


class Base:
    value = 1

    def greet(self, name: str) -> str:
        return f"hello {name}"


class Child(Base):
    pass


def test_an_own_attribute_comes_back() -> None:
    before = dict(vars(Base))
    with ExitStack() as stack:
        replace(stack, Base, "value", 2)
        wrap(stack, Base, "greet", lambda original, self, name: original(self, name).upper())
        assert (Base.value, Base().greet("you")) == (2, "HELLO YOU")
    assert dict(vars(Base)) == before


def test_an_inherited_attribute_is_inherited_again() -> None:
    with ExitStack() as stack:
        replace(stack, Child, "value", 3)
        assert (Child.value, Base.value) == (3, 1)
    assert "value" not in vars(Child)


def test_what_was_replaced_twice_comes_back_after_an_error() -> None:
    def fail() -> None:
        with ExitStack() as stack:
            replace(stack, Base, "value", 2)
            replace(stack, Base, "value", 3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert Base.value == 1


def test_what_was_imported_meanwhile_is_as_the_original_afterwards() -> None:
    owner = SimpleNamespace(double=lambda number: 2 * number)
    with ExitStack() as stack:
        wrap(stack, owner, "double", lambda original, number: -original(number))
        imported = owner.double
        assert imported(3) == -6
    assert imported(3) == owner.double(3) == 6


def test_all_places_are_there() -> None:
    seams.check()


def test_all_places_of_keras_2_are_there() -> None:
    pytest.importorskip("tf_keras")
    seams.check(seams.OF_TF_KERAS)


def test_one_error_names_all_that_is_missing_and_the_versions_that_work() -> None:
    lacking = (
        Seam(("keras.src.gone:Loss", "keras.src.losses.loss:Loss"), ("__call__", "_gone"), ""),
        Seam(("keras.src.moved:Trainer", "keras.src.trainers.trainer:Moved"), ("fit",), ""),
    )
    with pytest.raises(
        ImportError, match=r"gone:Loss\._gone, keras\.src\.moved:Trainer cannot be found in keras 3.* Keras 3"
    ):
        seams.check(lacking)


def test_a_place_that_is_not_in_the_table_is_not_changed() -> None:
    import keras

    with ExitStack() as stack, pytest.raises(LookupError, match=r"get_config.*table"):
        wrap(stack, keras.Model, "get_config", lambda original, model: original(model))


def test_what_every_class_has_is_not_taken_for_keras_s_own() -> None:
    """``hasattr(Loss, "__call__")`` is true of any class, for a class can be called."""
    child, base = f"{__name__}:Child", f"{__name__}:Base"
    assert Seam(base, ("value", "greet"), "why").missing == []
    assert Seam(child, ("value", "greet"), "why", inherited=True).missing == []
    for name in ("__call__", "__init__", "__getattribute__"):
        assert Seam(child, (name,), "why", inherited=True).missing == [f"{child}.{name}"]


def test_what_a_base_has_in_its_stead_is_not_taken_for_what_a_run_replaces() -> None:
    """``TensorFlowTrainer.fit`` that is gone leaves ``Trainer.fit``, which raises ``NotImplementedError``."""
    child = f"{__name__}:Child"
    assert Seam(child, ("greet",), "why").missing == [f"{child}.greet"]
