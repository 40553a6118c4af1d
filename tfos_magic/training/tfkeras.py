"""``tf_keras``, which is Keras 2: its models train by rules of their own, and are refused where ranks would not agree.

It is looked for when the cell imports it, for to import it costs seconds that few cells need.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from tfos_magic.errors import TrainingError
from tfos_magic.training.patching import wrap

NAME = "tf_keras"


def install(stack: ExitStack) -> None:
    """Refuse to train models of ``tf_keras`` until ``stack`` closes, whether it is imported already or later."""
    if NAME in sys.modules:
        _guard(stack, sys.modules[NAME])
        return
    finder = _Finder(stack)
    sys.meta_path.insert(0, finder)
    stack.callback(finder.leave)


class _Finder(MetaPathFinder):
    """Lets Python import ``tf_keras`` as it would, and guards what came of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

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
            stack, execute = self._stack, spec.loader.exec_module

            def run(module: ModuleType) -> None:
                execute(module)
                _guard(stack, module)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def _guard(stack: ExitStack, module: Any) -> None:
    owners = [(module.Model, "fit"), (module.Model, "train_on_batch")]
    owners.append((module.optimizers.Optimizer, "apply_gradients"))
    for owner, name in owners:
        wrap(stack, owner, name, lambda original, *a, _name=name, **k: _refuse(_name))


def _refuse(name: str) -> None:
    raise TrainingError(
        f"{name}() of tf_keras, which is Keras 2, cannot be shared out among several workers. Build the model with "
        "Keras 3 (import keras): most models run there unchanged. Or train it with one worker (-n 1)."
    )
