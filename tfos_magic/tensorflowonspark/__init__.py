"""TensorFlowOnSpark's API (2.2.5) on this project's engine: programs written for it run as they are.

``python -m tfos_magic.tensorflowonspark program.py arguments`` runs one; in a notebook :func:`install` lets ``from
tensorflowonspark import TFCluster`` find the modules here. A program, its cluster's size and its rows come in; its
programs run in trainers, fed by Spark, and what they answer or raise comes back.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tfos_magic.errors import UsageError

NAME = "tensorflowonspark"
SHIM = Path(__file__).parent / "shim" / f"{NAME}.py"
"""What executors import by the name of the package: it installs the modules here."""
_MODULES = ("TFCluster", "TFNode", "TFParallel", "TFSparkNode", "compat", "dfutil", "gpu_info", "pipeline", "util")
_GONE = {
    "TFManager": "rows arrive by the cluster's own connections: read them with TFNode.DataFeed; ctx.mgr is a stand-in",
    "marker": "DataFeed.next_batch tells the ends of partitions",
    "reservation": "the cluster forms by itself: TFCluster.run",
}


def install() -> None:
    """Let ``import tensorflowonspark`` find the modules of this package, in this process.

    Raises :class:`UsageError` where the package of that name is imported already.
    """
    found = sys.modules.get(NAME)
    if found is not None and found.__name__ != __name__ and not getattr(found, "of_tfos_magic", False):
        raise UsageError(
            f"{NAME} is imported already, from {getattr(found, '__file__', 'an unknown place')}: restart Python and "
            "call tfos_magic.tensorflowonspark.install() first, or leave it out to use that package."
        )
    sys.modules[NAME] = sys.modules[__name__]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def ship(sc: Any) -> None:
    """Let the Python workers of a SparkContext find the modules here by the package's name, too."""
    if not any(path.endswith(f"/{SHIM.name}") for path in sc.listFiles):
        sc.addPyFile(str(SHIM))


class _Finder(MetaPathFinder, Loader):
    """Finds ``tensorflowonspark.TFCluster`` and the rest as the modules of this package: one module by two names."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == NAME and name in (*_MODULES, *_GONE) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = getattr(sys.modules[__name__], spec.name.rpartition(".")[2])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # what it was loaded by, not the name it was asked by


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _GONE:
        raise ImportError(f"{NAME}.{name} is not here: {_GONE[name]}.")
    raise AttributeError(f"module {NAME!r} has no attribute {name!r}")


def __dir__() -> Sequence[str]:
    return sorted({*globals(), *_MODULES})
