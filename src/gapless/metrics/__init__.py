"""Metrics that never make the host wait: TorchMetrics' names, arguments and results."""

from __future__ import annotations

from gapless.metrics.aggregation import CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from gapless.metrics.classification import *  # noqa: F403
from gapless.metrics.collection import MetricCollection
from gapless.metrics.metric import Metric
from gapless.metrics.reading import Reading

__all__ = [
    "CatMetric",
    "MaxMetric",
    "MeanMetric",
    "Metric",
    "MetricCollection",
    "MinMetric",
    "Reading",
    "SumMetric",
]
