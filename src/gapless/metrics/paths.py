"""TorchMetrics' paths of modules, for code that imports from deep inside of it.

``from torchmetrics.functional.classification.accuracy import binary_accuracy`` goes on working when the first
word is changed to ``gapless.metrics``, although the names live elsewhere here: such a module is made when it
is asked for, and has every public name of `gapless.metrics`, or of `gapless.metrics.functional`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gapless.metrics.rooms import ROOMS, file_in_torchmetrics, metrics_of

HERE = "gapless.metrics"

_MORE = ("collections", "wrappers.feature_share")
"""TorchMetrics' modules with what is no metric of a folder here."""
_LATER = {"aggregation": "RunningMean RunningSum", "metric": "CompositionalMetric"}
"""Names that TorchMetrics has in these files and that modules define here which import them."""
_WITH_FUNCTIONS = tuple(room for room in ROOMS if room != "wrappers")
_FOLDERS = tuple(f"functional.{folder}" for folder in _WITH_FUNCTIONS)


@cache
def known() -> frozenset[str]:
    """Every path that TorchMetrics has for what is here: each metric says which one is its own."""
    files, functions = set(_MORE), set()
    for room in ROOMS:
        for metric in metrics_of(room).values():
            file = file_in_torchmetrics(metric)
            if file is not None:
                files.add(f"{room}.{file}")
                if room in _WITH_FUNCTIONS and getattr(metric, "function", "") is not None:
                    functions.add(f"functional.{room}.{file}")
    return frozenset(f"{HERE}.{path}" for path in (*files, *functions, *_FOLDERS))


class _Paths(MetaPathFinder, Loader):
    """Finds what has no file of its own; asked last, so that a file goes first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{HERE}.") or fullname not in known():
            return None
        return ModuleSpec(fullname, self, is_package=fullname.removeprefix(f"{HERE}.") in _FOLDERS)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        functional = module.__name__.startswith(f"{HERE}.functional.")
        home = importlib.import_module(f"{HERE}.functional" if functional else HERE)

        def __getattr__(name: str) -> Any:  # noqa: N807
            if name.startswith("_") or not hasattr(home, name):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(home, name)

        module.__getattr__ = __getattr__  # type: ignore[method-assign]


def install() -> None:
    """Let these paths be imported, with every name that TorchMetrics has there."""
    for file, names in _LATER.items():
        for name in names.split():
            setattr(sys.modules[f"{HERE}.{file}"], name, getattr(sys.modules[HERE], name))
    if not any(isinstance(finder, _Paths) for finder in sys.meta_path):
        sys.meta_path.append(_Paths())
