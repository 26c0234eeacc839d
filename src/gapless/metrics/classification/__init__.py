"""Metrics of predicted classes and labels."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("classification"))
__all__ = list(metrics_of("classification"))
