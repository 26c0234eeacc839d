# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.image.noise import PeakSignalNoiseRatio as PeakSignalNoiseRatio
from gapless.metrics.image.similarity import (
    MultiScaleStructuralSimilarityIndexMeasure as MultiScaleStructuralSimilarityIndexMeasure,
)
from gapless.metrics.image.similarity import (
    StructuralSimilarityIndexMeasure as StructuralSimilarityIndexMeasure,
)
