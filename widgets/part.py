"""What all parts have in common: a run that they show, its state as traits, and a picture that needs no kernel."""

from __future__ import annotations

import logging
import math
from typing import Any, ClassVar
from uuid import uuid4

import anywidget
import traitlets
from IPython.display import display
from ipywidgets import widget_serialization

from tfos_magic.cluster.runs.run import Run
from tfos_magic.errors import UsageError
from tfos_magic.notebook.views.card import as_of, part_bundle
from tfos_magic.notebook.views.choice import has_page, in_kernel
from tfos_magic.widgets.module import LOADER
from tfos_magic.widgets.panel import PANELS, Panel
from tfos_magic.widgets.shown import SHOWN, follow_boxes

log = logging.getLogger("tfos_magic.widgets")


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    """Values by name as JSON can hold them."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def refuse_others(*runs: Any) -> None:
    """Raise :class:`UsageError` for what is no run."""
    for run in runs:
        refuse_several(run)
        if run is not None and not hasattr(run, "run_id"):
            raise UsageError(
                f"{type(run).__name__} is not a run: give what submit() or --detach gives, or what a decorated "
                "function's submit() does."
            )


def refuse_several(runs: Any) -> None:
    """Raise :class:`UsageError` for what has runs and is none, as a map is."""
    if hasattr(runs, "runs") and not hasattr(runs, "state"):
        raise UsageError(f"{type(runs).__name__} is not a run but has several: give one of its .runs.")


class Part(anywidget.AnyWidget):
    """A widget that shows one side of a run, ``run``: None shows that there is none, and another may be set.

    It fills what it is put in, and all parts of a run together cost what one does. ``phase``, ``epoch`` (from 0),
    ``fraction`` (0 to 1) and ``metrics`` (values by name) are those of the run, for ``observe`` and ``jslink``; they
    change at most four times a second, in a thread of their own. In a saved notebook a part that was displayed by
    itself becomes a picture when the kernel ends, and is one from the first where there is no page; pictures of those
    in boxes stand beside the box.
    """

    kind: ClassVar[str]
    _esm = LOADER
    run: Any = traitlets.Any(None, help="the run that is shown")
    part = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode(read_only=True).tag(sync=True)
    data: Any = traitlets.Instance(Panel, allow_none=True).tag(sync=True, **widget_serialization)
    phase = traitlets.Unicode("none", read_only=True).tag(sync=True)
    epoch = traitlets.Int(0, read_only=True).tag(sync=True)
    fraction = traitlets.Float(0.0, read_only=True).tag(sync=True)
    metrics: Any = traitlets.Dict(read_only=True).tag(sync=True, to_json=lambda values, _: _finite(values))

    @traitlets.default("key")
    def _new_key(self) -> str:
        return uuid4().hex[:8]

    def __init__(self, run: Run | None = None, **traits: Any) -> None:
        traits.setdefault("layout", {"width": "100%"})
        self._failed: set[str] = set()
        refuse_others(run)
        follow_boxes()
        super().__init__(run=run, part=self.kind, data=PANELS.of(run), **traits)
        self.data.observe(self._follow, "picture")
        self._follow()
        self.observe(self._turn, "run")

    @traitlets.validate("run")
    def _checked(self, proposal: Any) -> Any:
        refuse_others(proposal.value)
        return proposal.value

    def _turn(self, _: Any = None) -> None:
        self.data.unobserve(self._follow, "picture")
        self.data = PANELS.of(self.run)
        self.data.observe(self._follow, "picture")
        self._follow()

    def _follow(self, _: Any = None) -> None:
        state = self.data.state
        with self.hold_sync():
            self._tell_of("phase", "none" if state is None else state.phase.value)
            self._tell_of("epoch", 0 if state is None else state.epoch)
            self._tell_of("fraction", 0.0 if state is None else round(state.fraction, 4))
            self._tell_of("metrics", {} if state is None else dict(state.metrics))
        if state is not None:
            SHOWN.follow(self)

    def _tell_of(self, trait: str, value: Any) -> None:
        """Set a trait; an observer of the user's own that raises holds nothing up, and is told of once."""
        try:
            self.set_trait(trait, value)
        except Exception:
            if trait not in self._failed:
                self._failed.add(trait)
                log.exception("An observer of %r of a %s failed.", trait, type(self).__name__)

    def close(self) -> None:
        """Show nothing more. The run continues."""
        if self.data is not None and self.comm is not None:
            self.data.unobserve(self._follow, "picture")
        super().close()

    def picture(self) -> dict[str, str]:
        """What is shown now as HTML and text, which need no kernel."""
        return part_bundle(self.data.state, self.kind)

    def kept(self) -> dict[str, str]:
        """The picture, with the time where it is not the last."""
        return as_of(self.data.state, self.picture())

    def bundle(self) -> dict[str, Any]:
        """The widget for pages that show it, and the picture for all others."""
        live, _ = self._repr_mimebundle_() or ({}, {})
        picture = self.kept()
        return {**live, **picture, "text/html": f'<div data-kept="{self.key}">{picture["text/html"]}</div>'}

    def _ipython_display_(self, **_: Any) -> None:
        drawn = type(self).bundle if has_page() else type(self).kept
        handle = display(drawn(self), raw=True, display_id=True)
        if handle is not None and in_kernel():
            SHOWN.add(handle, self, self.key, drawn, type(self).kept)
