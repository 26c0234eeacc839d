"""Every metric of predictions and targets as a function of one batch, in TorchMetrics' names and orders.

Each function makes its metric where the predictions are, adds the batch and returns the result; the host does not
wait. What a value check finds is only told on the CPU, because there is no later reading to tell it with.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gapless.metrics import classification, regression, segmentation, text
from gapless.metrics.classification.base import CountMetric
from gapless.metrics.metric import Metric
from gapless.metrics.tasks import Task

BEFORE = (("average", "top_k"), ("normalize", "ignore_index"), ("weights", "ignore_index"))
"""Arguments that come earlier in a function than in its class, and before which."""
BY_INPUT = ("PearsonCorrCoef", "ConcordanceCorrCoef", "LogCoshError")
"""Metrics whose function takes the number of outputs from its input."""
Parameter = inspect.Parameter


def function_name(metric: str) -> str:
    """``"MulticlassF1Score"`` as ``"multiclass_f1_score"``."""
    for word, spelled in (("AUROC", "Auroc"), ("ROC", "Roc"), ("IoU", "Iou"), ("FBeta", "Fbeta"), ("Corr", "_corr")):
        metric = metric.replace(word, spelled)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric).lower()
    return words.replace("_corr_coef", "_corrcoef").replace("__", "_")


def parameters_of(metric: type[Metric]) -> list[Parameter]:
    """The arguments of a metric's function after predictions and targets."""
    if issubclass(metric, Task):
        found = [Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)]
        arguments = dict(metric.arguments)
        if metric.__name__ in ("ROC", "PrecisionRecallCurve"):
            arguments = {"thresholds": None, "num_classes": None, "num_labels": None, "average": None, **arguments}
        if metric.__name__ == "ExactMatch":
            arguments = {"num_classes": None, "num_labels": None, **arguments}
        found += [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in arguments.items()]
    else:
        plain = list(inspect.signature(metric.__init__).parameters.values())[1:]
        found = [one.replace(annotation=Parameter.empty) for one in plain if one.kind is not one.VAR_KEYWORD]
    found = [one for one in found if one.name not in ("capacity", "num_outputs") or keeps(metric, one.name)]
    for name, other in BEFORE:
        names = [one.name for one in found]
        if name in names and other in names and names.index(name) > names.index(other):
            found.insert(names.index(other), found.pop(names.index(name)))
    extra = issubclass(metric, CountMetric) and "zero_division" not in [one.name for one in found]
    if extra:
        found.append(Parameter("zero_division", Parameter.POSITIONAL_OR_KEYWORD, default=0))
    return found


def keeps(metric: type[Metric], name: str) -> bool:
    """Whether the function has the argument `name`, which TorchMetrics' function of other metrics has not."""
    return name == "num_outputs" and metric.__name__ in ("MeanSquaredError", "MeanAbsoluteError")


def function_of(metric: type[Metric]) -> Callable[..., Any]:
    """The function that computes `metric` of one batch."""
    leading = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("preds", "target")]
    more = Parameter("kwargs", Parameter.VAR_KEYWORD)
    signature = inspect.Signature([*leading, *parameters_of(metric), more])

    def compute(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        options = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        options.pop("kwargs", None)
        preds, target = options.pop("preds"), options.pop("target")
        if metric.__name__ in BY_INPUT and preds.dim() == 2:
            options.setdefault("num_outputs", preds.shape[1])
        return of_batch(metric, options, preds, target)

    compute.__name__ = compute.__qualname__ = function_name(metric.__name__)
    compute.__doc__ = f"{(metric.__doc__ or '').strip().splitlines()[0]} See :class:`~gapless.metrics.{metric.__name__}`."
    compute.__signature__ = signature  # type: ignore[attr-defined]
    return compute


def of_batch(metric: type[Metric], options: dict[str, Any], preds: Tensor, target: Tensor) -> Any:
    """The value of one batch, from a metric made on its device."""
    with preds.device:
        made = metric(**options)
    made.update(preds, target)
    return made.value()


__all__ = []
for _room in (classification, regression, segmentation, text):
    for _name in _room.__all__:
        globals()[function_name(_name)] = function_of(getattr(_room, _name))
        __all__ += [function_name(_name)]
