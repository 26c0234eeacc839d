"""Register this package's metrics as subclasses of TorchMetrics' classes, for code that asks ``isinstance``.

TorchMetrics is not imported for this: the classes are registered if it is loaded, or as soon as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch import nn

from gapless.metrics.collection import MetricCollection
from gapless.metrics.metric import Metric
from gapless.metrics.wrappers.multitask import MultitaskWrapper
from gapless.metrics.wrappers.transparent import ClasswiseWrapper

TORCHMETRICS = "torchmetrics"


def register_subclasses(theirs: Any) -> None:
    """Make TorchMetrics, the module `theirs`, accept this package's metrics and collections as its own."""
    theirs.Metric.register(Metric)
    theirs.wrappers.ClasswiseWrapper.register(ClasswiseWrapper)
    theirs.wrappers.MultitaskWrapper.register(MultitaskWrapper)
    # `MetricCollection` is not an abstract class, so it cannot register a subclass: it becomes a base class
    # instead of `ModuleDict`, and all of its methods are overridden.
    if not issubclass(MetricCollection, theirs.MetricCollection):
        own = (base for base in MetricCollection.__bases__ if base is not nn.ModuleDict)
        MetricCollection.__bases__ = (*own, theirs.MetricCollection)


class _ImportWatcher(MetaPathFinder):
    """Registers the subclasses when TorchMetrics is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TORCHMETRICS:
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
                register_subclasses(module)

            loader.exec_module = exec_module
        return spec


def install() -> None:
    """Register the subclasses now, or once TorchMetrics is imported."""
    if TORCHMETRICS in sys.modules:
        register_subclasses(sys.modules[TORCHMETRICS])
    elif not any(isinstance(finder, _ImportWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportWatcher())
