"""Every metric as a function of one batch, with TorchMetrics' names and order of arguments.

Each function creates its metric on the device of the predictions, adds the batch and returns the result
without waiting. Bad values are reported at once on the CPU, and by a later call on a GPU.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapless.metrics.classification.count_metrics import BinaryScore
from gapless.metrics.classification.f_beta import FBeta
from gapless.metrics.classification.ratios import NegativePredictiveValueScore, PrecisionScore, RecallScore
from gapless.metrics.metric import Metric
from gapless.metrics.reading import is_looking_allowed, report_gone
from gapless.metrics.retrieval.base import RetrievalMetric
from gapless.metrics.rooms import ROOMS, metrics_of
from gapless.metrics.segmentation.overlap import MaskMetric
from gapless.metrics.tasks import Task
from gapless.metrics.wrapping import squeeze_result

EARLIER_ARGUMENTS = (
    ("average", "top_k"),
    ("normalize", "ignore_index"),
    ("weights", "ignore_index"),
    ("sigma", "kernel_size"),
    ("accumulate", "use_stemmer"),
    ("input_format", "aggregation_level"),
)
"""Pairs of arguments: in a function the first comes before the second, unlike in its class."""
WITH_NUM_OUTPUTS = ("MeanSquaredError", "MeanAbsoluteError", "NormalizedRootMeanSquaredError")
"""Metrics whose function has the argument `num_outputs`; others take it from the input's shape."""
PER_COLUMN = ("ConcordanceCorrCoef", "SpearmanCorrCoef")
"""Metrics whose function returns a value per column even for one column; the first for 1-dim input too."""
WITH_ZERO_DIVISION = (FBeta, PrecisionScore, RecallScore, NegativePredictiveValueScore)
"""Metrics whose function has the argument `zero_division`."""
UNCHECKED_BY_DEFAULT = ("BinaryHingeLoss", "MulticlassHingeLoss")
"""Metrics whose function does not validate arguments by default."""
Parameter = inspect.Parameter
_FUNCTION_ROOMS = tuple(room for room in ROOMS if room != "wrappers")
"""Folders whose metrics have a function each."""


def function_name(metric: str) -> str:
    """Return the function name of a metric's class: ``"MulticlassF1Score"`` is ``"multiclass_f1_score"``."""
    for room in _FUNCTION_ROOMS:
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
    """Return the parameters of a metric's function after predictions and targets."""
    if issubclass(metric, Task):
        parameters = [Parameter("task", Parameter.POSITIONAL_OR_KEYWORD)]
        arguments = metric.all_arguments()
        if metric.__name__ == "ExactMatch":
            arguments = {"num_classes": None, "num_labels": None, **arguments}
        parameters += [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in arguments.items()]
    else:
        plain = list(inspect.signature(metric.__init__).parameters.values())[1:]
        parameters = [
            parameter.replace(annotation=Parameter.empty)
            for parameter in plain
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
    if not issubclass(metric, (Task, MaskMetric)) and metric.__name__ != "MulticlassAccuracy":
        parameters = [
            parameter.replace(default=Parameter.empty) if parameter.name == "num_classes" else parameter
            for parameter in parameters
        ]
    if issubclass(metric, RetrievalMetric):
        parameters = [
            parameter
            for parameter in parameters
            if parameter.name not in ("empty_target_action", "ignore_index", "aggregation")
        ]
    left_out = ("capacity",) if metric.__name__ in WITH_NUM_OUTPUTS else ("capacity", "num_outputs")
    parameters = [parameter for parameter in parameters if parameter.name not in left_out]
    if metric.__name__ in UNCHECKED_BY_DEFAULT:
        parameters = [
            parameter.replace(default=False) if parameter.name == "validate_args" else parameter
            for parameter in parameters
        ]
    for name, other in EARLIER_ARGUMENTS:
        names = [parameter.name for parameter in parameters]
        if name in names and other in names and names.index(name) > names.index(other):
            parameters.insert(names.index(other), parameters.pop(names.index(name)))
    form = metric.forms["binary"] if issubclass(metric, Task) and "binary" in metric.forms else metric
    if issubclass(form, WITH_ZERO_DIVISION) and "zero_division" not in [
        parameter.name for parameter in parameters
    ]:
        parameters.append(Parameter("zero_division", Parameter.POSITIONAL_OR_KEYWORD, default=0))
    return parameters


def function_of(metric: type[Metric]) -> Callable[..., Any]:
    """Return the function that computes `metric` of one batch."""
    inputs = list(inspect.signature(metric.update).parameters)[1:3]
    if issubclass(metric, Task):
        inputs = ["preds", "target"]
    elif metric.__name__ == "MinkowskiDistance":
        inputs = ["preds", "targets"]
    leading = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in inputs]
    more = Parameter("kwargs", Parameter.VAR_KEYWORD)
    signature = inspect.Signature([*leading, *parameters_of(metric), more])
    outputs = inspect.signature(metric).parameters.get("num_outputs", more)
    by_input = outputs.default == 1 and metric.__name__ not in WITH_NUM_OUTPUTS

    def compute(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        options = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        options.pop("kwargs", None)
        batch = [options.pop(name) for name in inputs]
        preds = batch[0]
        if by_input and preds.dim() == 2:
            options.setdefault("num_outputs", preds.shape[1])
        result = compute_batch(metric, options, *batch)
        if metric.__name__ == "PeakSignalNoiseRatio" and result.dim():  # in the shape of what is left
            dims = torch.arange(preds.dim())[[options["dim"]]].flatten().tolist()
            return result.reshape([n for i, n in enumerate(preds.shape) if i not in dims])
        per_column = metric.__name__ in PER_COLUMN and (preds.dim() == 2 or metric.__name__ == PER_COLUMN[0])
        return result.reshape(-1) if per_column else result

    compute.__name__ = compute.__qualname__ = function_name(metric.__name__)
    docstring = metric.score_samples.__doc__ if issubclass(metric, MaskMetric) else metric.__doc__
    first = next(iter((docstring or "").strip().splitlines()), "")
    compute.__doc__ = f"{first} See :class:`~gapless.metrics.{metric.__name__}`."
    compute.__signature__ = signature  # type: ignore[attr-defined]
    return compute


def compute_batch(metric: type[Metric], options: dict[str, Any], *inputs: Any) -> Any:
    """Return the value of one batch, from a metric created on the batch's device."""
    with inputs[0].device if isinstance(inputs[0], Tensor) else nullcontext():
        instance = metric(**options)
    if instance.device.type == "cuda" and is_looking_allowed():
        report_gone(errors=True)
    if isinstance(instance, RetrievalMetric):
        instance.empty_target_action = "neg"
    for part in instance.all_statistics():
        part.names = (function_name(metric.__name__),)
    if any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in inputs):
        instance.set_dtype(torch.float64)
    if isinstance(instance, MaskMetric):
        return instance.score_batch(*inputs)
    if isinstance(instance, RetrievalMetric):  # all are one query's
        inputs = (*inputs, torch.zeros_like(inputs[1], dtype=torch.int64))
    with instance.batch_only(graph=True) if instance.keeps_graph(inputs) else nullcontext():
        instance.update(*inputs)
        return squeeze_result(instance.value()) if isinstance(instance, BinaryScore) else instance.value()


if TYPE_CHECKING:  # the functions are created below, from the metrics

    def __getattr__(name: str) -> Callable[..., Any]: ...


__all__ = []
for _room in _FUNCTION_ROOMS:
    for _name, _metric in metrics_of(_room).items():
        if getattr(_metric, "function", "") is not None:  # else it says that it has none
            globals()[function_name(_name)] = function_of(_metric)
            __all__ += [function_name(_name)]
