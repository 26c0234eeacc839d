"""Metrics made of another metric."""

from __future__ import annotations

from gapless.metrics.wrappers.bootstrap import BootStrapper
from gapless.metrics.wrappers.inside import ClasswiseWrapper, MinMaxMetric
from gapless.metrics.wrappers.running import Running, RunningMean, RunningSum
from gapless.metrics.wrappers.tracker import MetricTracker

__all__ = [
    "BootStrapper",
    "ClasswiseWrapper",
    "MetricTracker",
    "MinMaxMetric",
    "Running",
    "RunningMean",
    "RunningSum",
]
