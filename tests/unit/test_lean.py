"""TensorFlow loads without what Keras seldom needs, and all of Keras is there all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import sys
from tfos_magic.lean import load_tensorflow
load_tensorflow()
"""


def run(program: str) -> None:
    """Run a program in a process of its own, where TensorFlow is not loaded yet."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_what_keras_seldom_needs_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    run(f"""{LOAD}
assert "tensorflow" in sys.modules and "keras" in sys.modules
assert not {{"sklearn", "matplotlib", "pandas"}} & set(sys.modules)

import keras
from keras.wrappers import SKLearnClassifier
from sklearn.base import BaseEstimator, clone
assert issubclass(SKLearnClassifier, BaseEstimator)
assert keras.wrappers.SKLearnClassifier is SKLearnClassifier
clone(SKLearnClassifier(lambda X, y: None))
assert not hasattr(keras.wrappers, "Nothing")

import numpy as np
keras.visualization.plot_image_gallery(
    np.zeros((4, 8, 8, 3)), rows=2, cols=2, value_range=(0, 1), path={str(tmp_path / "gallery.png")!r}
)
""")
    assert (tmp_path / "gallery.png").stat().st_size > 100


@pytest.mark.soak
def test_keras_trains_on_tables_of_a_pandas_that_is_loaded_later() -> None:
    run(f"""{LOAD}
import keras, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 2)), np.ones(8), verbose=0)
assert "pandas" not in sys.modules

import pandas as pd
from keras.src.trainers.data_adapters.array_slicing import PandasDataFrameSliceable, convert_to_sliceable
table = pd.DataFrame({{"a": np.ones(8), "b": np.ones(8)}})
assert isinstance(convert_to_sliceable(table), PandasDataFrameSliceable)
model = keras.models.clone_model(model)
model.compile("sgd", "mse")
model.fit(table, table["a"], verbose=0)
""")


@pytest.mark.soak
def test_what_is_loaded_already_stays() -> None:
    run(f"""
import sklearn.base
{LOAD}
assert sys.modules["sklearn"] is sklearn
import keras
assert issubclass(keras.wrappers.SKLearnClassifier, sklearn.base.BaseEstimator)
""")
