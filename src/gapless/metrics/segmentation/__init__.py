"""Metrics of segmentation masks."""

from __future__ import annotations

from gapless.metrics.rooms import metrics_of

globals().update(metrics_of("segmentation"))
__all__ = list(metrics_of("segmentation"))
