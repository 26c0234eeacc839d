"""Metrics that pass for TorchMetrics' own where code asks ``isinstance``: Lightning, wrappers, collections.

TorchMetrics is never imported for it. Where it is loaded, or once it is, its abstract classes learn of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gapless.metrics.collection import MetricCollection
from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.multitask import MultitaskWrapper
from gapless.metrics.wrappers.transparent import ClasswiseWrapper

NAME = "torchmetrics"


def accept(theirs: Any) -> None:
    """Make TorchMetrics, the module `theirs`, take our metrics and collections for its own."""
    theirs.Metric.register(Metric)
    theirs.wrappers.ClasswiseWrapper.register(ClasswiseWrapper)
    theirs.wrappers.MultitaskWrapper.register(MultitaskWrapper)
    # Its collection is no abstract class, of which another can become a subclass by name alone. Whatever it
    # defines, ours does too.
    if not issubclass(MetricCollection, theirs.MetricCollection):
        MetricCollection.__bases__ = (theirs.MetricCollection,)


class _Arrival(MetaPathFinder):
    """Waits for TorchMetrics to be imported, by whomever."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        if hasattr(loader, "exec_module"):
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                accept(module)

            loader.exec_module = exec_module
        return spec


def install() -> None:
    """Be accepted by TorchMetrics now, or once it is imported."""
    if NAME in sys.modules:
        accept(sys.modules[NAME])
    elif not any(isinstance(finder, _Arrival) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Arrival())
