"""Find the metrics of a folder.

Every `nn.Module` class in a file of the folder is a metric, unless it has ``abstract=True``.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from torch import nn

ROOMS = (
    "classification",
    "detection",
    "image",
    "regression",
    "retrieval",
    "segmentation",
    "text",
    "wrappers",
)
"""The folders of `gapless.metrics` with metrics."""


@cache
def metrics_of(room: str) -> dict[str, Any]:
    """Return the metric classes of a folder of `gapless.metrics`, by name.

    >>> list(metrics_of("segmentation"))
    ['DiceScore', 'GeneralizedDiceScore', 'MeanIoU']
    """
    home = f"{__package__}.{room}"
    classes = {}
    for module_info in pkgutil.iter_modules(importlib.import_module(home).__path__):
        module = importlib.import_module(f"{home}.{module_info.name}")
        for name, value in vars(module).items():
            is_defined_here = isinstance(value, type) and value.__module__ == module.__name__
            if is_defined_here and issubclass(value, nn.Module) and not vars(value).get("abstract"):
                classes[name] = value
    return dict(sorted(classes.items()))


def file_in_torchmetrics(metric: Any) -> str | None:
    """Return TorchMetrics' module of a metric, without the folder; None if TorchMetrics lacks the metric.

    >>> from gapless.metrics import BinaryAUROC, MeanSquaredError, TokenAccuracy
    >>> [file_in_torchmetrics(metric) for metric in (BinaryAUROC, MeanSquaredError, TokenAccuracy)]
    ['auroc', 'mse', None]
    """
    forms = getattr(metric, "forms", None)  # a name for several tasks is in its forms' module
    if forms:
        return file_in_torchmetrics(next(iter(forms.values())))
    file: str | None = getattr(metric, "torchmetrics_file", "")
    return metric.__module__.rpartition(".")[2] if file == "" else file
