"""What every metric of predictions and targets has."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.describing import description
from gapless.metrics.metric import Metric

TAKES = {
    ("binary", False): "predictions, scores or labels, and targets of 0 and 1, ``(N, ...)`` each",
    ("binary", True): "scores and targets of 0 and 1, ``(N, ...)`` each",
    ("multiclass", False): (
        "predictions, scores ``(N, C, ...)`` or labels ``(N, ...)``, and targets ``(N, ...)`` of 0 to C - 1"
    ),
    ("multiclass", True): "scores ``(N, C, ...)`` and targets ``(N, ...)`` of 0 to C - 1",
    ("multilabel", False): "predictions, scores or labels, and targets of 0 and 1, ``(N, L, ...)`` each",
    ("multilabel", True): "scores and targets of 0 and 1, ``(N, L, ...)`` each",
}
"""What ``update`` takes, by task, and by whether scores (probabilities or logits) are needed."""
LEGENDS = {"multiclass": "Class", "multilabel": "Label"}
"""What a plot calls the values of a result."""


class PredictionMetric(Metric, abstract=True):
    """A metric of predictions and targets, of whatever task.

    What its task makes of predictions and targets is part of a class's description.

    Args:
        num_classes: how many classes there are.
        num_labels: how many labels there are.
        threshold: above which a probability is a positive prediction.
        average: ``"micro"``, ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per
            class or label.
        multidim_average: ``"global"``, or ``"samplewise"`` for a value per sample over the further
            dimensions.
        ignore_index: a target that does not count.
        validate_args: whether arguments, shapes and values are checked; values are counted on the device.
        zero_division: the value where nothing is to be divided by.
        logits: whether floating-point predictions are logits; None takes a batch with a value outside [0, 1]
            for logits.
        capacity: for ``"samplewise"``, the number of samples there is room for, in fixed storage.
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    task = "binary"
    num_classes: int | None
    num_labels: int
    needs_scores = False
    """Whether labels will not do as predictions."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "task" in vars(cls):
            cls.plot_legend_name = LEGENDS[cls.task]
        if cls.__doc__ and cls.__init__ is not Metric.__init__:
            takes = f"``update`` takes {TAKES[cls.task, cls.needs_scores]}."
            whole = re.sub("``.+?``", lambda shape: shape[0].replace(" ", "\0"), takes)  # no shape is broken
            takes = textwrap.fill(whole, 100).replace("\0", " ")
            own, each = description(cls), "label" if cls.task == "multilabel" else "class"
            told = str(own._replace(before=f"{own.before}\n\n{takes}"))
            cls.__doc__ = told.replace("class or label", each)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of predictions and targets, of the shapes that the class's description tells.

        Raises:
            RuntimeError, ValueError: with `validate_args`, shapes or dtypes do not fit. Values that are no
                labels are told at once on the CPU; a GPU counts them, and tells when a result is read.
        """
        self.observe(preds, target)

    def _begin(
        self, ignore_index: int | None, validate_args: bool, options: dict[str, Any], classes: int | None = 1
    ) -> None:
        """Take the arguments that all have, `classes` of classes or labels, and in `options` those of
        :class:`~gapless.metrics.Metric`.
        """
        Metric.__init__(self, **options)
        if validate_args:
            checks.optional_integer("ignore_index", ignore_index)
        if self.task != "binary":
            setattr(self, "num_classes" if self.task == "multiclass" else "num_labels", classes)
        self.ignore_index = ignore_index
        self.validate_args = validate_args
