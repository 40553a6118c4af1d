"""Where a rank's time goes: waiting for its next batch, and for the others."""

from __future__ import annotations

import pytest

from tests.soak import every
from tests.training.conftest import succeeded

CELL = """
import time
import keras
import numpy as np
import tensorflow as tf
import tfos_magic as tfos

SLOW = {slow}


def rows():
    for _ in range(24):
        time.sleep(0.03 if tfos.rank() == SLOW else 0)
        yield np.ones(4, "float32"), np.ones(1, "float32")


data = tf.data.Dataset.from_generator(
    rows, output_signature=(tf.TensorSpec((4,)), tf.TensorSpec((1,)))).batch(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution={at_once})
model.fit(data, epochs=2, verbose=0)
"""


@pytest.mark.soak
@pytest.mark.parametrize("at_once", every(2, [1, 4]))
def test_a_rank_whose_data_are_slow_waits_for_them_and_its_peers_wait_for_it(groups, at_once: int) -> None:
    last = {}
    cell = CELL.format(slow=1, at_once=at_once)
    succeeded(
        groups[2].run(cell, on_message=lambda rank, m: last.update({rank: m} if hasattr(m, "data_seconds") else {}))
    )
    assert last[1].data_seconds > 0.5
    assert last[0].data_seconds < last[1].data_seconds / 2
    assert last[0].peer_seconds > 0.5
    assert last[1].peer_seconds < last[0].peer_seconds
    assert last[0].exchange_seconds > 0


def test_a_rank_alone_knows_what_it_waits_for_data(groups) -> None:
    last = []
    succeeded(groups[1].run(CELL.format(slow=0, at_once=1), on_message=lambda rank, m: last.append(m)))
    progress = [m for m in last if type(m).__name__ == "Progress"]
    assert progress[-1].data_seconds > 0.5
    assert progress[-1].peer_seconds == progress[-1].exchange_seconds == 0.0
    assert [m.data_seconds for m in progress] == sorted(m.data_seconds for m in progress)
