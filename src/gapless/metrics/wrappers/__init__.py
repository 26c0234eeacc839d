"""Metrics made of another metric."""

from __future__ import annotations

from gapless.metrics.wrappers.bootstrap import BootStrapper
from gapless.metrics.wrappers.multioutput import MultioutputWrapper
from gapless.metrics.wrappers.multitask import MultitaskWrapper
from gapless.metrics.wrappers.running import Running, RunningMean, RunningSum
from gapless.metrics.wrappers.tracker import MetricTracker
from gapless.metrics.wrappers.transformations import (
    BinaryTargetTransformer,
    LambdaInputTransformer,
    MetricInputTransformer,
)
from gapless.metrics.wrappers.transparent import ClasswiseWrapper, MinMaxMetric

__all__ = [
    "BinaryTargetTransformer",
    "BootStrapper",
    "ClasswiseWrapper",
    "LambdaInputTransformer",
    "MetricInputTransformer",
    "MetricTracker",
    "MinMaxMetric",
    "MultioutputWrapper",
    "MultitaskWrapper",
    "Running",
    "RunningMean",
    "RunningSum",
]
