"""What is told beside an error of a step."""

from __future__ import annotations

import pytest

from tfos_magic.training.firststep.words import of_counts

ADD = "cannot compute AddV2 as input #1 was expected to be a double tensor but is a float tensor"
ARGUMENTS = "\n\nArguments received by Noise.call():\n  • inputs=tf.Tensor(shape=(16, 8), dtype=float64)"


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        ("Incompatible shapes: [32,4] vs. [16,4]", True),
        ("Exception encountered when calling Noise.call(). Incompatible shapes: [32,4] vs. [16,4]" + ARGUMENTS, True),
        (ADD, False),
        ("Exception encountered when calling Noise.call(). " + ADD + ARGUMENTS, False),
        ("Incompatible shapes: [16,4] vs. [16,3]", False),
        ("Dimensions must be equal, but are 32 and 16 for 'x' with input shapes: [32], [16,4].", True),
        ("a tensor of shape=(16,) is out of scope, made in line 32, in line 64", False),
    ],
)
def test_a_count_of_all_rows_is_told_of_by_shapes_that_differ_and_not_by_a_layers_arguments(
    error: str, is_told: bool
) -> None:
    assert bool(of_counts(error, 2)) is is_told


@pytest.mark.parametrize("error", ["'NoneType' object cannot be interpreted", "None values not supported."])
def test_rows_of_an_unknown_number_are_told_of(error: str) -> None:
    assert "tf.shape(x)[0]" in of_counts(error, 2)


def test_a_shape_that_squeezing_left_unknown_is_told_of() -> None:
    assert "Name the axis" in of_counts("as_list() is not defined on an unknown TensorShape.", 2)
