"""The static card: what stays in a saved notebook."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from tfos_magic.cluster.runs.state import FeedState, RunState
from tfos_magic.notebook.views.card import as_of, card_bundle, render_card

from .simulated import finish, new_state, run_through

VOID = {"br", "hr", "img", "input", "meta"}


class Reader(HTMLParser):
    """Collects a page's tags and its text, and checks that every tag is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def final_state(world: int = 2) -> RunState:
    *_, state = run_through(new_state(world))
    return state


def test_the_card_tells_the_run_without_styles_or_pictures() -> None:
    text = " ".join(Reader(render_card(final_state())).words)
    for part in (
        "✓ Trained on 2 workers digits · sync · 3 epochs · ",
        "loss 0.1667 accuracy 0.96 val_loss 0.2 val_accuracy 0.91 pace 1,280 rows/s",
        "train 1,920 rows · 960 kB",
        "worker 1 127.0.0.1 · pid 4001 · cpu done",
        "BatchNormalization uses",
    ):
        assert part in text


def test_the_card_needs_no_script_style_sheet_or_network() -> None:
    page = render_card(final_state())
    tags = Reader(page).tags
    assert "svg" in tags
    assert not {"script", "style", "link", "img", "iframe"} & set(tags)
    assert not re.search(r"https?:|\bon\w+=", page)


def test_every_colour_is_a_variable_of_the_page_with_a_fallback() -> None:
    page = render_card(final_state())
    assert page.count("var(--jp-") > 10
    page = re.sub(r' stroke="#[0-9a-f]{6}"', "", page)  # for where styles are stripped; a style goes before it
    outside = re.sub(r"var\(--jp-[\w-]+,(?:rgba\([^)]*\)|[^()]*)\)", "", page)
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgba?\(", outside)


def test_text_from_outside_is_escaped() -> None:
    state = new_state()
    state.name = state.error = state.workers[0].host = "<script>alert(1)</script>"
    state.notices.append("<b>bold</b>")
    state.feeds["<i>"] = FeedState("<i>")
    state.metrics = {"<u>": 1.0}
    finish(state, "error")
    tags = Reader(render_card(state)).tags
    assert not {"script", "b", "i", "u"} & set(tags)


def test_there_is_one_row_per_worker_and_feed() -> None:
    assert Reader(render_card(final_state(world=5))).tags.count("tr") == 6


def test_the_bundle_holds_the_same_in_one_line_of_text() -> None:
    bundle = card_bundle(final_state())
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"].startswith("Trained on 2 workers in ")
    assert "\n" not in bundle["text/plain"]
    json.dumps(bundle)


def test_a_picture_that_may_be_kept_says_when_it_was_drawn_unless_the_run_has_ended() -> None:
    state = new_state()
    kept = as_of(state, card_bundle(state))
    assert re.search(r"Drawn at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, when digits had not ended", kept["text/html"])
    ended = final_state()
    assert as_of(ended, card_bundle(ended)) == card_bundle(ended)


def test_where_drawings_are_stripped_and_their_texts_are_left_charts_are_sentences() -> None:
    text = " ".join(Reader(render_card(final_state())).words)
    assert re.search(r"loss by epoch: loss from 0\.5 to 0\.1667.* Its axes end at 0\.909 0\.167 0 3", text), text
