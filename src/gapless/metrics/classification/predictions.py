"""What every metric of predictions and targets has."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from torch import Tensor

from gapless.metrics import checks
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

BEYOND = ("logits", "capacity", "zero_division")
"""Arguments that a constructor takes without naming them."""


class PredictionMetric(Metric, abstract=True):
    """A metric of predictions and targets, of whatever task.

    What a class says about its arguments is part of the description of every class derived from it that takes
    them; so is what its task makes of predictions and targets.
    """

    is_differentiable = False
    higher_is_better: bool | None = True
    task = "binary"
    needs_scores = False
    """Whether labels will not do as predictions."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__init__ is Metric.__init__:
            return
        taken = dict.fromkeys([*inspect.signature(cls.__init__).parameters, *BEYOND])
        if not {"multidim_average", "thresholds"} & taken.keys():  # Nothing is kept sample by sample.
            taken.pop("capacity")
        bases = cls.__mro__[: cls.__mro__.index(PredictionMetric)]
        told = {name: text for base in reversed(bases) for name, text in arguments(base).items()}
        entries = "\n".join(told[name] for name in taken if name in told)
        if cls.__doc__:
            summary = inspect.cleandoc(cls.__doc__).partition("\n\nArgs:\n")[0]
            takes = f"``update`` takes {TAKES[cls.task, cls.needs_scores]}."
            whole = re.sub("``.+?``", lambda shape: shape[0].replace(" ", "\0"), takes)  # no shape is broken
            takes = textwrap.fill(whole, 100).replace("\0", " ")
            cls.__doc__ = f"{summary}\n\n{takes}\n\nArgs:\n{entries}"

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch of predictions and targets, of the shapes that the class's description tells.

        Raises:
            RuntimeError, ValueError: with `validate_args`, shapes or dtypes do not fit. Values that are no
                labels are told at once on the CPU; a GPU counts them, and tells when a result is read.
        """
        self.observe(preds, target)

    def _begin(self, ignore_index: int | None, validate_args: bool, options: dict[str, Any]) -> None:
        """Take the arguments that all have; `options` are those of :class:`~gapless.metrics.Metric`."""
        Metric.__init__(self, **options)
        if validate_args:
            checks.optional_integer("ignore_index", ignore_index)
        self.ignore_index = ignore_index
        self.validate_args = validate_args


def arguments(described: type) -> dict[str, str]:
    """What a class says about its arguments, by name."""
    _, _, listed = inspect.cleandoc(described.__doc__ or "").partition("\n\nArgs:\n")
    entries = re.split(r"\n(?=    \w)", listed) if listed else []
    return {entry.strip().partition(":")[0]: entry for entry in entries}
