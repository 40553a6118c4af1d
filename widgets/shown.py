"""What a saved notebook shows of parts, which need the kernel: pictures in their place, and beside boxes of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import display

from tfos_magic.cluster.lifecycle import close_at_exit
from tfos_magic.notebook.views.card import drawn_at
from tfos_magic.widgets.spare_card import EMPTY, NO_ERROR

Pictures = Callable[[Any], dict[str, Any]]


class Shown:
    """The displays of parts and of boxes of parts. Their pictures follow as runs end, and as this process ends, when
    those in the place of a part stand alone."""

    def __init__(self) -> None:
        self._displays: list[tuple[Any, weakref.ref[Any], str, Pictures, Pictures]] = []
        self._known: set[tuple[int, str]] = set()

    def add(self, handle: Any, widget: Any, key: str, going_on: Pictures, at_end: Pictures) -> None:
        """Draw ``widget`` at ``handle`` by ``going_on`` as a run of it ends, and by ``at_end`` as the process does.

        ``key`` is the ``data-kept`` of the output.
        """
        if not self._displays:
            close_at_exit(self)
        self._displays.append((handle, weakref.ref(widget), key, going_on, at_end))

    def ended(self, part: Any) -> None:
        """Show the end of the part's run, once, where pages that draw no widgets look."""
        for handle, reference, key, going_on, _ in self._displays:
            known, widget = (id(handle), part.data.state.run_id), reference()
            if widget is not None and known not in self._known and part in parts_in(widget):
                self._known.add(known)
                self._draw(handle, key, going_on(widget), part)

    @staticmethod
    def _draw(handle: Any, key: str, bundle: dict[str, Any], part: Any) -> None:
        handle.update(bundle, raw=True)
        part.data.kept = {**part.data.kept, key: bundle}

    def close_quickly(self) -> None:
        for handle, reference, key, _, at_end in self._displays:
            if (widget := reference()) is not None:
                self._draw(handle, key, at_end(widget), next(parts_in(widget)))


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
        handle = display(_pictures_of(box), raw=True, display_id=True)
        if handle is not None:
            SHOWN.add(handle, box, _key_of(box), _pictures_of, _pictures_of)


def _key_of(box: Any) -> str:
    return " ".join(part.key for part in parts_in(box))


def _pictures_of(box: Any) -> dict[str, str]:
    """The pictures of all parts; a page that draws one of these hides them."""
    html = "".join(dict.fromkeys(part.picture()["text/html"] for part in parts_in(box)))
    key = _key_of(box)
    opened = f'<div class="tfos-spare" data-parts="{key}" data-kept="{key}"><style>{NO_ERROR}</style>'
    dated = drawn_at({**EMPTY, "text/html": html})["text/html"]
    return {**EMPTY, "text/html": f"{opened}{dated}</div>"}
