# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.segmentation.generalized import GeneralizedDiceScore as GeneralizedDiceScore
from gapless.metrics.segmentation.overlap import DiceScore as DiceScore
from gapless.metrics.segmentation.overlap import MeanIoU as MeanIoU
