"""TorchMetrics' metrics and functions, which ours are compared with, by name."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import torchmetrics
import torchmetrics.classification
import torchmetrics.detection
import torchmetrics.functional.classification
import torchmetrics.functional.detection
import torchmetrics.functional.image
import torchmetrics.functional.regression
import torchmetrics.functional.retrieval
import torchmetrics.functional.segmentation
import torchmetrics.functional.text
import torchmetrics.image
import torchmetrics.regression
import torchmetrics.retrieval
import torchmetrics.segmentation
import torchmetrics.text

import gapless.metrics as metrics
from gapless.metrics.rooms import file_in_torchmetrics

ROOMS = ("classification", "detection", "image", "regression", "retrieval", "segmentation", "text")


WITH_TORCHVISION = ("MeanAveragePrecision",)
"""Metrics that TorchMetrics has only with torchvision and pycocotools installed."""


def has_reference(name: str) -> bool:
    """Whether TorchMetrics has our metric of that name and can create it here."""
    needed = ("torchvision", "pycocotools") if name in WITH_TORCHVISION else ()
    installed = all(importlib.util.find_spec(package) is not None for package in needed)
    return installed and file_in_torchmetrics(getattr(metrics, name)) is not None


def theirs(name: str) -> Any:
    """Return TorchMetrics' metric of that name."""
    return among((torchmetrics, *(getattr(torchmetrics, room) for room in ROOMS)), name)


def their_function(name: str) -> Any:
    """Return TorchMetrics' function of that name."""
    home = torchmetrics.functional
    return among((*(getattr(home, room) for room in ROOMS), home), name)


def among(homes: tuple[ModuleType, ...], name: str) -> Any:
    for home in homes:
        if hasattr(home, name):
            return getattr(home, name)
    raise AssertionError(
        f"TorchMetrics {torchmetrics.__version__} has no {name}: if the metric is Gapless's own, "
        "its class says so with `torchmetrics_file = None`"
    )
