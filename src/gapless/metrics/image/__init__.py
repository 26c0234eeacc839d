"""Metrics of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.metrics.rooms import metrics_of

if TYPE_CHECKING:  # the names for type checkers and editors; `make format` writes them
    from gapless.metrics.image.noise import PeakSignalNoiseRatio as PeakSignalNoiseRatio
    from gapless.metrics.image.similarity import (
        MultiScaleStructuralSimilarityIndexMeasure as MultiScaleStructuralSimilarityIndexMeasure,
    )
    from gapless.metrics.image.similarity import (
        StructuralSimilarityIndexMeasure as StructuralSimilarityIndexMeasure,
    )
else:
    globals().update(metrics_of("image"))
    __all__ = list(metrics_of("image"))
