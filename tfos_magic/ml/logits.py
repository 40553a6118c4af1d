"""Whether what a classifier's model gives are probabilities, or what these are made of."""

from __future__ import annotations

from functools import partial
from typing import Any


def gives_logits(model: Any) -> bool:
    """Whether the outputs are to become probabilities yet: the loss says so, else the last layer's activation does.

    So are margins, of which hinge losses are made: the second of two classes begins at zero.
    """
    import keras

    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        if (takes := _takes_logits(loss)) is not None:
            return takes
    layers = getattr(model, "layers", None) or [model]
    name = getattr(getattr(layers[-1], "activation", None), "__name__", "")
    return name not in ("softmax", "sigmoid") and type(layers[-1]).__name__ != "Softmax"


def _takes_logits(loss: Any) -> bool | None:
    """Whether a loss takes logits, or margins; None where it does not say, as a function of the user's own."""
    import keras

    if isinstance(loss, partial):
        return bool(loss.keywords["from_logits"]) if "from_logits" in loss.keywords else _takes_logits(loss.func)
    hinges = (keras.losses.Hinge, keras.losses.SquaredHinge)
    if isinstance(loss, hinges) or str(getattr(loss, "__name__", loss)) in ("hinge", "squared_hinge"):
        return True
    if hasattr(loss, "get_config") and "from_logits" in (config := loss.get_config()):
        return bool(config["from_logits"])
    of_keras = isinstance(loss, str) or str(getattr(loss, "__module__", "")).startswith("keras.")
    return False if of_keras else None  # those by name take probabilities
