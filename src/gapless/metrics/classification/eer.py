"""The error rate at which false positives are as frequent as false negatives."""

from __future__ import annotations

from torch import Tensor

from gapless.metrics.classification.curves import roc_points
from gapless.metrics.classification.roc import Roc
from gapless.metrics.classification.scored import BinaryScored, MulticlassCurve, MultilabelCurve
from gapless.metrics.classification.scores import Rising
from gapless.metrics.tasks import Task


class EqualErrorRate(Roc, abstract=True):
    """The error rate at which false positives are as frequent as false negatives.

    For the ``"macro"`` average without thresholds ``compute`` waits, as that curve's length depends on the
    data.
    """

    def score(self, rising: Rising) -> Tensor:
        if self.average == "macro":
            fpr, tpr = (row.unsqueeze(0) for row in super().score(rising)[:2])
        else:
            fpr, tpr = roc_points(rising)
        at = (fpr - (1 - tpr)).abs().argmin(1, keepdim=True)
        rates: Tensor = ((fpr.gather(1, at) + (1 - tpr.gather(1, at))) / 2).squeeze(1)
        return rates[0] if self._single or self.average == "macro" else rates


class BinaryEER(EqualErrorRate, BinaryScored):
    """The error rate at which false positives are as frequent as false negatives."""


class MulticlassEER(EqualErrorRate, MulticlassCurve):
    """The error rate at which false positives are as frequent as false negatives, of each class."""

    plot_legend_name = "Class"


class MultilabelEER(EqualErrorRate, MultilabelCurve):
    """The error rate at which false positives are as frequent as false negatives, of each label."""

    plot_legend_name = "Label"


class EER(Task):
    """The equal error rate of a task."""
