"""Make TorchMetrics' module paths importable below this package.

``from torchmetrics.functional.classification.accuracy import binary_accuracy`` works when ``torchmetrics`` is
replaced by ``gapless.metrics``, although names are defined elsewhere here: such a module is created on import
and has every public name of `gapless.metrics`, or of `gapless.metrics.functional`.
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

PACKAGE = "gapless.metrics"

_OTHER_MODULES = ("collections", "wrappers.feature_share")
"""TorchMetrics' modules that belong to no metric of a folder here."""
_NAMES_DEFINED_LATER = {"aggregation": ("RunningMean", "RunningSum"), "metric": ("CompositionalMetric",)}
"""TorchMetrics' names in these files that modules here define which import the files."""
_ROOMS_WITH_FUNCTIONS = tuple(room for room in ROOMS if room != "wrappers")
"""Folders whose metrics have a function each."""
_FOLDERS = tuple(f"functional.{folder}" for folder in _ROOMS_WITH_FUNCTIONS)
"""Paths that are packages."""


@cache
def torchmetrics_paths() -> frozenset[str]:
    """Return every path that TorchMetrics has for the metrics here, as each metric declares it."""
    files, functions = set(_OTHER_MODULES), set()
    for room in ROOMS:
        for metric in metrics_of(room).values():
            file = file_in_torchmetrics(metric)
            if file is not None:
                files.add(f"{room}.{file}")
                if room in _ROOMS_WITH_FUNCTIONS and getattr(metric, "function", "") is not None:
                    functions.add(f"functional.{room}.{file}")
    return frozenset(f"{PACKAGE}.{path}" for path in (*files, *functions, *_FOLDERS))


class _PathFinder(MetaPathFinder, Loader):
    """Creates modules for these paths; the last finder, so that existing files have precedence."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{PACKAGE}.") or fullname not in torchmetrics_paths():
            return None
        return ModuleSpec(fullname, self, is_package=fullname.removeprefix(f"{PACKAGE}.") in _FOLDERS)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        functional = module.__name__.startswith(f"{PACKAGE}.functional.")
        home = importlib.import_module(f"{PACKAGE}.functional" if functional else PACKAGE)

        def __getattr__(name: str) -> Any:  # noqa: N807
            if name.startswith("_") or not hasattr(home, name):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(home, name)

        module.__getattr__ = __getattr__  # type: ignore[method-assign]


def install() -> None:
    """Make these paths importable, with TorchMetrics' names."""
    for file, names in _NAMES_DEFINED_LATER.items():
        for name in names:
            setattr(sys.modules[f"{PACKAGE}.{file}"], name, getattr(sys.modules[PACKAGE], name))
    if not any(isinstance(finder, _PathFinder) for finder in sys.meta_path):
        sys.meta_path.append(_PathFinder())
