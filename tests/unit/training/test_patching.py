"""Attributes are put back exactly as they were, inherited ones not copied."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from tfos_magic.training.keras_seam.patching import replace, wrap


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
