"""Metrics of objects detected in images."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("detection"))
__all__ = list(metrics_of("detection"))
