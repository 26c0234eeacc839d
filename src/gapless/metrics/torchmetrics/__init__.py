"""Change TorchMetrics objects in place with `unwait`: the host waits less, and values stay the same.

>>> from gapless.metrics.torchmetrics import unwait
>>> import torchmetrics
>>> metric = torchmetrics.MeanMetric()
>>> changed = unwait(metric)
>>> metric.update(2.0)
>>> metric.compute()
tensor(2.)
"""

from __future__ import annotations

from gapless.metrics.torchmetrics import replacements as replacements  # registers them
from gapless.metrics.torchmetrics._unwait import MetricChanges, Unwaited, rewait, unwait

__all__ = ["MetricChanges", "Unwaited", "rewait", "unwait"]
