"""Metrics of masks."""

from __future__ import annotations

from gapless.metrics.segmentation.overlap import DiceScore, MeanIoU

__all__ = ["DiceScore", "MeanIoU"]
