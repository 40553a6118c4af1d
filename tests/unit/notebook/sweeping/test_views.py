"""Which view shows a sweep."""

from __future__ import annotations

import pytest

from tfos_magic.notebook.sweeping import views
from tfos_magic.notebook.views import choice


def test_a_view_of_runs_that_shows_no_sweeps_leaves_them_their_card(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(views._VIEWS) <= set(choice._VIEWS)
    monkeypatch.setattr(choice, "CHOICES", (*choice.CHOICES, "plain"))
    assert isinstance(views.view_of("plain"), views.CardView)
    assert isinstance(views.view_of("text"), views.LinesView)
