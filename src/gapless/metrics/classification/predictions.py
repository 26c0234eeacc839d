"""The base class of metrics of predictions and targets."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.describing import parse_description
from gapless.metrics.metric import Metric

INPUTS = {
    ("binary", False): "predictions, scores or labels, and targets of 0 and 1, ``(N, ...)`` each",
    ("binary", True): "scores and targets of 0 and 1, ``(N, ...)`` each",
    ("multiclass", False): (
        "predictions, scores ``(N, C, ...)`` or labels ``(N, ...)``, and targets ``(N, ...)`` of 0 to C - 1"
    ),
    ("multiclass", True): "scores ``(N, C, ...)`` and targets ``(N, ...)`` of 0 to C - 1",
    ("multilabel", False): "predictions, scores or labels, and targets of 0 and 1, ``(N, L, ...)`` each",
    ("multilabel", True): "scores and targets of 0 and 1, ``(N, L, ...)`` each",
}
"""Inputs of ``update``, by task and by whether it needs scores (probabilities or logits)."""
LEGENDS = {"multiclass": "Class", "multilabel": "Label"}
"""What a plot's legend calls the values of a result, by task."""


class PredictionMetric(Metric, abstract=True):
    """A metric of predictions and targets, for any task.

    The inputs of its task are added to each class's docstring.

    Args:
        num_classes: the number of classes.
        num_labels: the number of labels.
        threshold: the probability above which a prediction is positive.
        average: ``"micro"``, ``"macro"``, ``"weighted"`` (by support), or ``"none"`` or None for a value per
            class or label.
        multidim_average: ``"global"``, or ``"samplewise"`` for a value per sample, over the remaining
            dimensions.
        ignore_index: a target that does not count.
        validate_args: whether arguments, shapes and values are checked; values are counted on the device.
        zero_division: the value of a quotient whose denominator is 0.
        logits: whether floating-point predictions are logits; with None a batch is taken for logits if it has
            a value outside [0, 1].
        capacity: for ``"samplewise"``, the maximum number of samples, kept in fixed storage.
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    task = "binary"
    num_classes: int | None
    num_labels: int
    needs_scores = False
    """Whether predictions must be scores; labels are not enough."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "task" in vars(cls):
            cls.plot_legend_name = LEGENDS[cls.task]
        if cls.__doc__ and cls.__init__ is not Metric.__init__:
            inputs = f"``update`` takes {INPUTS[cls.task, cls.needs_scores]}."
            whole = re.sub(
                "``.+?``", lambda shape: shape[0].replace(" ", "\0"), inputs
            )  # keeps shapes on one line
            inputs = textwrap.fill(whole, 100).replace("\0", " ")
            own, noun = parse_description(cls), "label" if cls.task == "multilabel" else "class"
            text = str(own._replace(before=f"{own.before}\n\n{inputs}"))
            cls.__doc__ = text.replace("class or label", noun)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of predictions and targets, of the shapes in the class's docstring.

        Raises:
            RuntimeError, ValueError: with `validate_args`, shapes or dtypes do not fit. Invalid labels raise
            at
                once on the CPU; a GPU counts them, and reading a result reports them.
        """
        self.observe(preds, target)

    def _set_up(
        self, ignore_index: int | None, validate_args: bool, options: dict[str, Any], classes: int | None = 1
    ) -> None:
        """Set the options that all metrics of predictions share.

        `classes` is the number of classes or labels; `options` are those of :class:`~gapless.metrics.Metric`.
        """
        Metric.__init__(self, **options)
        if validate_args:
            checks.check_optional_integer("ignore_index", ignore_index)
        if self.task != "binary":
            setattr(self, "num_classes" if self.task == "multiclass" else "num_labels", classes)
        self.ignore_index = ignore_index
        self.validate_args = validate_args
