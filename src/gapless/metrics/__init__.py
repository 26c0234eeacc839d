"""Metrics that never make the host wait: TorchMetrics' names, arguments and results."""

from __future__ import annotations

from gapless.metrics.aggregation import CatMetric, MaxMetric, MeanMetric, MinMetric, SumMetric
from gapless.metrics.metric import Metric

__all__ = ["CatMetric", "MaxMetric", "MeanMetric", "Metric", "MinMetric", "SumMetric"]
