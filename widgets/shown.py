"""What a saved notebook shows of parts, which need the kernel: pictures in their place, and beside boxes of them."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from tfos_magic.cluster.lifecycle import close_at_exit
from tfos_magic.notebook.views.card import drawn_at
from tfos_magic.notebook.views.choice import has_page, in_kernel
from tfos_magic.widgets.spare_card import EMPTY, FIRST_SECONDS, NO_ERROR, SECONDS_BETWEEN

Pictures = Callable[[Any], dict[str, Any]]


@dataclass
class _Display:
    """Where a part or a box is displayed, and what draws it as a run goes on, or ends, and as the process does.

    ``key`` is the ``data-kept`` of the output. From ``due`` on it is drawn anew while runs go on. ``heard`` is what a
    client has that has no page.
    """

    handle: Any
    widget: weakref.ref[Any]
    key: str
    going_on: Pictures
    at_end: Pictures
    due: float = math.inf
    ended: set[str] = field(default_factory=set)
    heard: dict[str, Any] = field(default_factory=dict)

    def tell(self) -> None:
        """Draw what has changed since this was called last."""
        widget = self.widget()
        if any(parts_in(widget)) and (bundle := self.at_end(widget)) != self.heard:
            self.heard = bundle
            self.handle.update(bundle, raw=True)

    def draw(self, bundle: dict[str, Any], part: Any, last: bool = True) -> None:
        self.handle.update(bundle, raw=True)
        if last:
            part.data.kept = {**part.data.kept, self.key: bundle}


class Shown:
    """The displays of parts and of boxes of parts. Their pictures follow as runs end, and as this process ends, when
    those in the place of a part stand alone; those beside boxes are at most ten seconds old.

    Clients without a page hear of outputs only while a cell runs: theirs follow with every cell.
    """

    def __init__(self) -> None:
        self._displays: list[_Display] = []

    def add(
        self, handle: Any, widget: Any, key: str, going_on: Pictures, at_end: Pictures, spare: bool = False
    ) -> None:
        """``handle`` displays ``widget``, or, ``spare``, what stands beside it."""
        if not self._displays:
            close_at_exit(self)
            get_ipython().events.register("post_run_cell", self._after_cell)  # type: ignore[union-attr]
        due = time.monotonic() + FIRST_SECONDS if spare else math.inf
        self._displays.append(_Display(handle, weakref.ref(widget), key, going_on, at_end, due))

    def follow(self, part: Any) -> None:
        """The part's run has gone on, or has ended: draw it where pages look that draw no widgets."""
        run_id, has_ended, now = part.data.state.run_id, part.data.state.phase.ended, time.monotonic()
        for shown in self._displays:
            if not (has_ended and run_id not in shown.ended) and now < shown.due:
                continue
            widget = shown.widget()
            if widget is None or part not in parts_in(widget):
                continue
            if has_ended:
                shown.ended.add(run_id)
            shown.due = now + SECONDS_BETWEEN if shown.due < math.inf else math.inf
            shown.draw(shown.going_on(widget), part, last=has_ended)

    def _after_cell(self, _: Any) -> None:
        if not has_page():
            for shown in self._displays:
                shown.tell()

    def close_quickly(self) -> None:
        for shown in self._displays:
            widget = shown.widget()
            if (part := next(parts_in(widget), None)) is not None:  # a box may have been emptied
                shown.draw(shown.at_end(widget), part)


SHOWN = Shown()


def parts_in(widget: Any) -> Iterator[Any]:
    """The parts that a widget is or holds, in their order."""
    if hasattr(widget, "picture"):
        yield widget
    else:
        for child in getattr(widget, "children", ()):
            yield from parts_in(child)


def follow_boxes() -> None:
    """Have notebooks keep pictures of boxes that hold parts. Doing so twice is harmless."""
    shell: Any = get_ipython()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(ipywidgets.Box, _beside)


def _beside(box: Any) -> None:
    """Display, above a box that is displayed now, what stands in for its parts; of the box itself there is no HTML."""
    if any(parts_in(box)):
        key = uuid4().hex[:8]
        pictures = partial(_pictures_of, key=key)
        handle = display(pictures(box), raw=True, display_id=True)
        if handle is not None and in_kernel():
            SHOWN.add(handle, box, key, pictures, pictures, spare=True)


def _pictures_of(box: Any, key: str) -> dict[str, str]:
    """The pictures of all parts; a page that draws one of these hides them."""
    pictures = [part.picture()["text/html"] for part in parts_in(box)]
    bundle = {**EMPTY, "text/html": "".join(dict.fromkeys(pictures))}
    if pictures != [part.kept()["text/html"] for part in parts_in(box)]:  # some are not the last
        bundle = drawn_at(bundle)
    known = " ".join(part.key for part in parts_in(box))
    opened = f'<div class="tfos-spare" data-parts="{known}" data-kept="{key}"><style>{NO_ERROR}</style>'
    return {**EMPTY, "text/html": f"{opened}{bundle['text/html']}</div>"}
