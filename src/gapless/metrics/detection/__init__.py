"""Metrics of objects found in images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.metrics.rooms import metrics_of

if TYPE_CHECKING:  # the names for type checkers and editors; `make format` writes them
    from gapless.metrics.detection.mean_ap import MeanAveragePrecision as MeanAveragePrecision
    from gapless.metrics.detection.panoptic_qualities import (
        ModifiedPanopticQuality as ModifiedPanopticQuality,
    )
    from gapless.metrics.detection.panoptic_qualities import PanopticQuality as PanopticQuality
else:
    globals().update(metrics_of("detection"))
    __all__ = list(metrics_of("detection"))
