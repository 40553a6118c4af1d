"""What a sweep reads off the text of its cell."""

from __future__ import annotations

import pytest

from tfos_magic.errors import UsageError
from tfos_magic.sweeps.cell_text import model_of, outputs_of, refuse_without_model, sets, text_of


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("net = make()\nnet.fit(train)", "net"),
        ("a.fit(x)\nif deep:\n    for _ in range(2):\n        b.fit(x)", "b"),
        ("a.fit(x)\ndef again(c):\n    c.fit(x)", "a"),
        ("history = a.fit(x).history", "a"),
        ("best = make()\nother.fit(x)", "best"),
        ("make().fit(x)", ""),
        ("net.fit(x)\nscore = max(best for best in net.history)", "net"),
        ("import best\nnet.fit(x)", "best"),
        ("def tune():\n    global best\n    best = 3\nnet.fit(x)", "best"),
        ("score = 3", ""),
    ],
)
def test_the_model_is_what_the_cell_calls_fit_of_last(text: str, model: str) -> None:
    assert model_of(text) == model


def test_names_that_are_brought_back_are_those_of_the_cell() -> None:
    text = "net.fit(x)\nscore = 1.0\nfor history in []: pass"
    assert outputs_of(text, "val_loss", ["study", "best", "history"], "net") == ["history", "net"]
    assert outputs_of(text, "score", ["study"], "") == ["score"]
    assert sets(text, "history")
    assert not sets("def f():\n    score = 1", "score")
    with pytest.raises(UsageError, match="calls fit of by a name"):
        refuse_without_model("")


def test_a_function_has_its_text_where_that_is_known() -> None:
    def fit() -> int:
        return 3

    assert text_of(fit).startswith("def fit() -> int:")
    assert text_of(eval("lambda: 3")) == ""
