"""Metrics of images."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("image"))
__all__ = list(metrics_of("image"))
