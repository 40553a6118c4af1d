"""What comes back in place of objects of a library that is not loaded yet."""

from __future__ import annotations

import pickle
import sys

import pytest

from tfos_magic.worker.placeholders import TrainingHistory


def test_a_history_that_was_read_before_its_library_was_loaded_is_one_afterwards() -> None:
    import keras

    with pytest.MonkeyPatch.context() as without:
        without.delitem(sys.modules, "keras")
        read = pickle.loads(pickle.dumps(TrainingHistory({"loss": [1.0]}, [0])))
        assert type(read) is TrainingHistory
        assert read.as_loaded() == read
    made = read.as_loaded()
    assert isinstance(made, keras.callbacks.History)
    assert (made.history, made.epoch) == ({"loss": [1.0]}, [0])
