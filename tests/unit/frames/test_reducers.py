"""Reducers that depend on how rows are cut into blocks, or on their order, are refused; no others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfos_magic.frames as tfs
from tfos_magic.errors import UsageError

RNG = np.random.default_rng(11)
FRAMES = {
    "float64": pd.DataFrame({"x": RNG.normal(size=500) * 1e6}),
    "float32": pd.DataFrame({"x": RNG.normal(size=500).astype(np.float32)}),
    "float16": pd.DataFrame({"x": RNG.normal(size=500).astype(np.float16)}),
    "int32": pd.DataFrame({"x": RNG.integers(-(2**31), 2**31, 500).astype(np.int32)}),
    "of labels": pd.DataFrame({"x": RNG.integers(0, 2, 500).astype(np.float64)}),
    "of vectors": pd.DataFrame({"x": list(RNG.normal(size=(500, 3)))}),
    "with NaN and infinities": pd.DataFrame({"x": [np.nan, np.inf, 1.0, -np.inf, np.nan, 2.0, 3.0] * 50}),
    "of huge numbers": pd.DataFrame({"x": RNG.normal(size=500).astype(np.float32) * 1e38}),
    "of one row": pd.DataFrame({"x": [3.0]}),
}
SOUND = {
    "sum": lambda x_input: {"x": tf.reduce_sum(x_input, 0)},
    "max": lambda x_input: {"x": tf.reduce_max(x_input, 0)},
    "min": lambda x_input: {"x": tf.reduce_min(x_input, 0)},
    "product": lambda x_input: {"x": tf.reduce_prod(x_input, 0)},
}
UNSOUND = {
    "a mean": lambda x_input: {"x": tf.reduce_mean(x_input, 0)},
    "a count by shape": lambda x_input: {"x": tf.cast(tf.shape(x_input)[0], x_input.dtype) + 0 * x_input[0]},
    "the first row": lambda x_input: {"x": x_input[0]},
    "squares": lambda x_input: {"x": 2 * tf.reduce_sum(x_input, 0)},
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("reducer", SOUND)
def test_what_is_associative_and_commutative_is_reduced_whatever_the_values(reducer: str, frame: str) -> None:
    tfs.reduce_blocks(SOUND[reducer], FRAMES[frame], block_rows=64)


def test_exponentials_norms_and_maxima_with_their_index_are_reduced() -> None:
    frame = pd.DataFrame({"x": FRAMES["of labels"]["x"], "i": np.arange(500)})
    tfs.reduce_blocks(lambda x_input: {"x": tf.reduce_logsumexp(x_input)}, FRAMES["float32"], block_rows=64)
    tfs.reduce_blocks(lambda x_input: {"x": tf.norm(x_input)}, FRAMES["float64"], block_rows=64)

    def greatest(x_input: Any, i_input: Any) -> dict[str, Any]:
        return {"x": tf.reduce_max(x_input), "i": i_input[tf.argmax(x_input)]}

    assert tfs.reduce_blocks(greatest, frame)["i"] == frame["x"].argmax()


@pytest.mark.parametrize("rows", [2, 3, 500])
@pytest.mark.parametrize("reducer", UNSOUND)
def test_what_is_not_is_refused_though_one_block_has_all_rows(reducer: str, rows: int) -> None:
    with pytest.raises(UsageError, match=r"makes 'x' .* associative and commutative.*reduce sums"):
        tfs.reduce_blocks(UNSOUND[reducer], FRAMES["float64"][:rows])


def test_a_mean_is_refused_of_rows_and_of_groups_and_of_labels() -> None:
    with pytest.raises(UsageError, match="associative"):
        tfs.reduce_rows(lambda x_1, x_2: {"x": (x_1 + x_2) / 2}, FRAMES["float64"])
    with pytest.raises(UsageError, match="associative"):
        tfs.reduce_blocks(UNSOUND["a mean"], FRAMES["of labels"])
    frame = FRAMES["float64"].assign(k=RNG.integers(0, 9, 500))
    with pytest.raises(UsageError, match="associative"):
        tfs.aggregate(UNSOUND["a mean"], frame.groupby("k"))


def test_a_mean_of_rows_that_are_alike_at_first_is_refused_where_they_are_not() -> None:
    frame = pd.DataFrame({"x": [1.0] * 20 + [2.0, 5.0, 3.0, 8.0]})
    with pytest.raises(UsageError, match="associative"):
        tfs.reduce_blocks(UNSOUND["a mean"], frame, block_rows=8)
