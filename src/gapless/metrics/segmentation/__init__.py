"""Metrics of masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.metrics.rooms import metrics_of

if TYPE_CHECKING:  # the names for type checkers and editors; `make format` writes them
    from gapless.metrics.segmentation.generalized import GeneralizedDiceScore as GeneralizedDiceScore
    from gapless.metrics.segmentation.overlap import DiceScore as DiceScore
    from gapless.metrics.segmentation.overlap import MeanIoU as MeanIoU
else:
    globals().update(metrics_of("segmentation"))
    __all__ = list(metrics_of("segmentation"))
