"""`unwait`: TorchMetrics objects that make the host wait less, changed in place, with the same values.

>>> from gapless.metrics.torchmetrics import unwait
>>> import torchmetrics
>>> metric = torchmetrics.MeanMetric()
>>> changed = unwait(metric)
>>> metric.update(2.0)
>>> metric.compute()
tensor(2.)
"""

from __future__ import annotations

from gapless.metrics.torchmetrics import replacements as replacements  # which importing registers
from gapless.metrics.torchmetrics._unwait import MetricChanges, Unwaited, rewait, unwait

__all__ = ["MetricChanges", "Unwaited", "rewait", "unwait"]
