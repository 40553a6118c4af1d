"""What a cell shows on a worker becomes a bundle that a notebook can show."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tfos_magic.worker.display import bundle_of, display, showing


class Bundled:
    def _repr_mimebundle_(self, **_: Any) -> Any:
        return {"text/html": "<b>both</b>"}, {"text/html": {"isolated": True}}


class Broken:
    def _repr_html_(self) -> str:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "as text"


def test_objects_show_themselves_and_bytes_become_base64() -> None:
    data, _ = bundle_of(pd.DataFrame({"a": [1]}))
    assert "<table" in data["text/html"]
    assert data["text/plain"].split() == ["a", "0", "1"]
    assert bundle_of(np.arange(2)) == ({"text/plain": "array([0, 1])"}, {})
    assert bundle_of(Bundled())[0]["text/html"] == "<b>both</b>"
    assert bundle_of(Bundled())[1] == {"text/html": {"isolated": True}}


class Odd:
    """Shows itself as what no notebook takes."""

    def _repr_html_(self) -> Any:
        return 3

    def _repr_json_(self) -> Any:
        return {"an": object()}

    def _repr_png_(self) -> Any:
        return b"png", {"width": object()}

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return object()

    def __repr__(self) -> str:
        return "odd"


@pytest.mark.parametrize("value", [Broken(), Broken, Odd()])
def test_what_cannot_show_itself_is_shown_as_text(value: Any) -> None:
    assert list(bundle_of(value)[0]) == ["text/plain"]


def test_figures_left_open_are_shown_at_the_end_and_closed() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    seen = []
    with showing(lambda data, metadata: seen.append(data)):
        display(3)
        pyplot.plot([1, 2])
    assert seen[0] == {"text/plain": "3"}
    assert base64.b64decode(seen[1]["image/png"]).startswith(b"\x89PNG")
    assert not pyplot.get_fignums()
