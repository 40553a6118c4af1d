"""``tf_keras``, which is Keras 2, under ``sync``: the weights and the history of one process, or a clear refusal."""

from __future__ import annotations

import pytest

from tests.training.harness import DATA

pytest.importorskip(
    "tf_keras", reason="pip install --no-deps tf-keras: with its dependencies it replaces tensorflow-cpu"
)

LEGACY = DATA.replace("import keras\n", "import tf_keras as keras\n")
FIT = "history = model.fit(x, y, batch_size=65, epochs=2, verbose=0).history\nweights = model.get_weights()\n"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_arrays_and_sgd_give_the_weights_of_one_process(same_as_plain, size: int) -> None:
    same_as_plain(LEGACY + "model = mlp()\nmodel.compile('sgd', from_logits, ['accuracy'])\n" + FIT, size)
