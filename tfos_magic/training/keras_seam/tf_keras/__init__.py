"""``tf_keras``, which is Keras 2: its models train under ``sync`` as those of Keras 3 do.

Its models and their data come in, steps of the whole batch go out. It is looked for when the cell imports it, for to
import it costs seconds that few cells need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from tfos_magic.training.keras_seam import seams
from tfos_magic.training.rank_session import Session

NAME = "tf_keras"


def install(stack: ExitStack, session: Session) -> None:
    """Take hold of ``tf_keras`` until ``stack`` closes, whether it is imported already or later."""

    def hold() -> None:
        seams.check(seams.OF_TF_KERAS)
        from tfos_magic.training.keras_seam.tf_keras import hooks  # imports tf_keras

        hooks.install(stack, session)

    if NAME in sys.modules:
        hold()
        return
    finder = _Finder(hold)
    sys.meta_path.insert(0, finder)
    stack.callback(finder.leave)


class _Finder(MetaPathFinder):
    """Lets Python import ``tf_keras`` as it would, and calls ``then`` after that."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME or self not in sys.meta_path:
            return None
        self.leave()
        spec = find_spec(NAME)
        if spec is not None and spec.loader is not None:
            then, loader, execute = self._then, spec.loader, spec.loader.exec_module

            def run(module: ModuleType) -> None:
                del loader.exec_module  # the one of its class is back: a module keeps its loader, and that this run
                execute(module)
                then()

            loader.exec_module = run  # type: ignore[method-assign]
        return spec
