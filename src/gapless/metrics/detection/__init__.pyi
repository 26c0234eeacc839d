# The metrics of this folder, found when it is imported. `make format` writes this file.

from gapless.metrics.detection.mean_ap import MeanAveragePrecision as MeanAveragePrecision
from gapless.metrics.detection.panoptic_qualities import ModifiedPanopticQuality as ModifiedPanopticQuality
from gapless.metrics.detection.panoptic_qualities import PanopticQuality as PanopticQuality
