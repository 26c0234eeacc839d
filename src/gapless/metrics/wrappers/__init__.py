"""Metrics made of another metric."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("wrappers"))
__all__ = list(metrics_of("wrappers"))
