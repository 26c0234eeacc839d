"""Metrics of predicted numbers."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("regression"))
__all__ = list(metrics_of("regression"))
