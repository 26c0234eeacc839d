"""Every metric of a folder as a function of one batch; what TorchMetrics has, in its names and orders.

Each function makes its metric where the predictions are, adds the batch and returns the result; the host does
not wait. What a value check finds is told at once on the CPU, elsewhere by a later call, once it has arrived.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapless.metrics.classification.base import BinaryScore
from gapless.metrics.classification.f_beta import FBeta
from gapless.metrics.classification.ratios import NegativePredictiveValueScore, PrecisionScore, RecallScore
from gapless.metrics.metric import Metric
from gapless.metrics.reading import look_for_gone, may_look
from gapless.metrics.retrieval.base import RetrievalMetric
from gapless.metrics.rooms import ROOMS, metrics_of
from gapless.metrics.segmentation.overlap import MaskMetric
from gapless.metrics.tasks import Task
from gapless.metrics.wrapping import squeezed

BEFORE = (
    ("average", "top_k"),
    ("normalize", "ignore_index"),
    ("weights", "ignore_index"),
    ("sigma", "kernel_size"),
    ("accumulate", "use_stemmer"),
    ("input_format", "aggregation_level"),
)
"""Arguments that come earlier in a function than in its class, and before which."""
SIZED = ("MeanSquaredError", "MeanAbsoluteError", "NormalizedRootMeanSquaredError")
"""Metrics whose function is told the number of outputs; others take it from their input."""
COLUMNS = ("ConcordanceCorrCoef", "SpearmanCorrCoef")
"""Those whose function gives a value per column of its input where there is one column; the first always."""
DIVIDING = (FBeta, PrecisionScore, RecallScore, NegativePredictiveValueScore)
"""Metrics whose function says what a division by zero gives."""
UNCHECKED = ("BinaryHingeLoss", "MulticlassHingeLoss")
"""Metrics whose function checks nothing unless it is asked to."""
Parameter = inspect.Parameter
_ROOMS = tuple(room for room in ROOMS if room != "wrappers")
"""Those whose metrics have a function each."""
__path__: list[str] = []
"""Beneath it are TorchMetrics' paths of modules: see `gapless.metrics.paths`."""


def function_name(metric: str) -> str:
    """``"MulticlassF1Score"`` as ``"multiclass_f1_score"``."""
    for room in _ROOMS:
        if hasattr(metrics_of(room).get(metric), "function"):
            return str(metrics_of(room)[metric].function)
    for word, spelled in (
        ("AUROC", "Auroc"),
        ("ROC", "Roc"),
        ("IoU", "Iou"),
        ("FBeta", "Fbeta"),
        ("Corr", "_corr"),
        ("KLDiv", "KlDiv"),
        ("MultiScale", "Multiscale"),
    ):
        metric = metric.replace(word, spelled)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric).lower()
    return words.replace("_corr_coef", "_corrcoef").replace("__", "_")


def parameters_of(metric: type[Metric]) -> list[Parameter]:
    """The arguments of a metric's function after predictions and targets."""
    if issubclass(metric, Task):
        found = [Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)]
        arguments = metric.all_arguments()
        if metric.__name__ == "ExactMatch":
            arguments = {"num_classes": None, "num_labels": None, **arguments}
        found += [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in arguments.items()]
    else:
        plain = list(inspect.signature(metric.__init__).parameters.values())[1:]
        found = [one.replace(annotation=Parameter.empty) for one in plain if one.kind is not one.VAR_KEYWORD]
    if not issubclass(metric, (Task, MaskMetric)) and metric.__name__ != "MulticlassAccuracy":
        found = [one.replace(default=Parameter.empty) if one.name == "num_classes" else one for one in found]
    if issubclass(metric, RetrievalMetric):
        found = [
            one for one in found if one.name not in ("empty_target_action", "ignore_index", "aggregation")
        ]
    left_out = ("capacity",) if metric.__name__ in SIZED else ("capacity", "num_outputs")
    found = [one for one in found if one.name not in left_out]
    if metric.__name__ in UNCHECKED:
        found = [one.replace(default=False) if one.name == "validate_args" else one for one in found]
    for name, other in BEFORE:
        names = [one.name for one in found]
        if name in names and other in names and names.index(name) > names.index(other):
            found.insert(names.index(other), found.pop(names.index(name)))
    form = metric.forms["binary"] if issubclass(metric, Task) and "binary" in metric.forms else metric
    if issubclass(form, DIVIDING) and "zero_division" not in [one.name for one in found]:
        found.append(Parameter("zero_division", Parameter.POSITIONAL_OR_KEYWORD, default=0))
    return found


def function_of(metric: type[Metric]) -> Callable[..., Any]:
    """The function that computes `metric` of one batch."""
    given = list(inspect.signature(metric.update).parameters)[1:3]
    if issubclass(metric, Task):
        given = ["preds", "target"]
    elif metric.__name__ == "MinkowskiDistance":
        given = ["preds", "targets"]
    leading = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in given]
    more = Parameter("kwargs", Parameter.VAR_KEYWORD)
    signature = inspect.Signature([*leading, *parameters_of(metric), more])
    outputs = inspect.signature(metric).parameters.get("num_outputs", more)
    by_input = outputs.default == 1 and metric.__name__ not in SIZED

    def compute(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        options = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        options.pop("kwargs", None)
        batch = [options.pop(name) for name in given]
        preds = batch[0]
        if by_input and preds.dim() == 2:
            options.setdefault("num_outputs", preds.shape[1])
        found = of_batch(metric, options, *batch)
        if metric.__name__ == "PeakSignalNoiseRatio" and found.dim():  # in the shape of what is left
            dims = torch.arange(preds.dim())[[options["dim"]]].flatten().tolist()
            return found.reshape([n for i, n in enumerate(preds.shape) if i not in dims])
        per_column = metric.__name__ in COLUMNS and (preds.dim() == 2 or metric.__name__ == COLUMNS[0])
        return found.reshape(-1) if per_column else found

    compute.__name__ = compute.__qualname__ = function_name(metric.__name__)
    told = metric.score_samples.__doc__ if issubclass(metric, MaskMetric) else metric.__doc__
    first = next(iter((told or "").strip().splitlines()), "")
    compute.__doc__ = f"{first} See :class:`~gapless.metrics.{metric.__name__}`."
    compute.__signature__ = signature  # type: ignore[attr-defined]
    return compute


def of_batch(metric: type[Metric], options: dict[str, Any], *given: Any) -> Any:
    """The value of one batch, from a metric made on its device."""
    with given[0].device if isinstance(given[0], Tensor) else nullcontext():
        made = metric(**options)
    if made.device.type == "cuda" and may_look():
        look_for_gone(errors=True)
    if isinstance(made, RetrievalMetric):
        made.empty_target_action = "neg"
    for part in made._parts:
        part.names = (function_name(metric.__name__),)
    if any(isinstance(one, Tensor) and one.dtype == torch.float64 for one in given):
        made.set_dtype(torch.float64)
    if isinstance(made, MaskMetric):
        return made.score_batch(*given)
    if isinstance(made, RetrievalMetric):  # all are one query's
        given = (*given, torch.zeros_like(given[1], dtype=torch.int64))
    with made.batch_only(graph=True) if made.keeps_graph(given) else nullcontext():
        made.update(*given)
        return squeezed(made.value()) if isinstance(made, BinaryScore) else made.value()


if TYPE_CHECKING:  # functions are made of metrics: what can be known of them before is that they are some

    def __getattr__(name: str) -> Callable[..., Any]: ...


__all__ = []
for _room in _ROOMS:
    for _name, _metric in metrics_of(_room).items():
        if getattr(_metric, "function", "") is not None:  # else it says that it has none
            globals()[function_name(_name)] = function_of(_metric)
            __all__ += [function_name(_name)]
