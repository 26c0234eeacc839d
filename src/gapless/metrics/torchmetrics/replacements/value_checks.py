"""Checks of values that count bad values on the device. Checks of shapes and dtypes are TorchMetrics' own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import checks_are_on, report
from gapless.metrics.torchmetrics._registry import Function, replacement_for

NOTE = "checks of values are counted on the GPU and reported later"
_STAT = "functional.classification.stat_scores"
_MATRIX = "functional.classification.confusion_matrix"
_CURVE = "functional.classification.precision_recall_curve"

MAX_FORMS = 4096
"""Forms of inputs (dtypes, shapes, options) that a check remembers, to bound memory."""


def _make_form_check(original: Function) -> Callable[..., dict[str, Any]]:
    """Return a check that runs `original` on zeros of the same dtypes and shapes, which pass checks of
    values.

    So its checks of form raise as usual. Forms that have passed are remembered. The check returns the
    arguments that are not tensors, by name; tensors have to come first.
    """
    signature = inspect.signature(original)

    passed: dict[tuple[Any, ...], dict[str, Any]] = {}

    def run(names: tuple[str, ...], values_or_forms: list[Any]) -> dict[str, Any]:
        values = [_zeros(*value) if type(value) is tuple else value for value in values_or_forms]
        plain = len(values) - len(names)
        bound = signature.bind(*values[:plain], **dict(zip(names, values[plain:], strict=False)))
        bound.apply_defaults()
        original(*bound.args)
        return {name: value for name, value in bound.arguments.items() if not isinstance(value, Tensor)}

    def check(*args: Any, **kwargs: Any) -> dict[str, Any]:
        values_or_forms = [
            (value.dtype, value.shape) if isinstance(value, Tensor) else value
            for value in (*args, *kwargs.values())
        ]
        key = (*values_or_forms, *kwargs)
        arguments = passed.get(key)
        if arguments is None:
            arguments = run(tuple(kwargs), values_or_forms)
            if len(passed) >= MAX_FORMS:
                passed.clear()
            passed[key] = arguments
        return arguments

    return check


def _zeros(dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu").expand(shape)


def _differs_from_all(tensor: Tensor, *allowed: int | None) -> Tensor:
    """Return where `tensor` equals none of the `allowed` values."""
    differences = [tensor != value for value in allowed if value is not None]
    for difference in differences[1:]:
        differences[0] &= difference
    return differences[0]


def _binary_labels(original: Function) -> Function:
    """Check that targets are 0, 1 or the ignored value, and label predictions 0 or 1."""
    form = _make_form_check(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        ignored = form(preds, target, *args, **kwargs)["ignore_index"]
        if not checks_are_on():
            return
        allowed = "0 or 1" if ignored is None else f"0, 1 or {ignored}"
        report("{n} targets were not " + allowed, _differs_from_all(target, 0, 1, ignored))
        if not preds.is_floating_point():
            report("{n} predictions were not 0 or 1", _differs_from_all(preds, 0, 1))

    return check


def _report_too_many_labels(tensor: Tensor, allowed: int, name: str) -> None:
    """Report if `tensor` holds more distinct values than `allowed`; sorting keeps the size fixed."""
    if tensor.numel() <= allowed or not checks_are_on():
        return
    ordered = tensor.reshape(-1).sort().values
    distinct = (ordered[1:] != ordered[:-1]).sum() + 1
    words = "{n} more different values in `" + name + f"` than the {allowed} expected"
    report(words, (distinct - allowed).clamp(min=0))


def _class_labels(original: Function) -> Function:
    """Check that labels have no more distinct values than there are classes."""
    form = _make_form_check(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        arguments = form(preds, target, *args, **kwargs)
        classes = arguments["num_classes"]
        if classes is None or preds.is_floating_point():
            return  # as in TorchMetrics: targets are only checked if predictions are labels, too
        allowed = classes + (arguments["ignore_index"] is not None)
        _report_too_many_labels(target, allowed, "target")
        _report_too_many_labels(preds, allowed, "preds")

    return check


for _place in (
    f"{_STAT}:_binary_stat_scores_tensor_validation",
    f"{_STAT}:_multilabel_stat_scores_tensor_validation",
    f"{_MATRIX}:_binary_confusion_matrix_tensor_validation",
    f"{_MATRIX}:_multilabel_confusion_matrix_tensor_validation",
    f"{_CURVE}:_binary_precision_recall_curve_tensor_validation",
):
    replacement_for(_place, NOTE)(_binary_labels)
for _place in (
    f"{_STAT}:_multiclass_stat_scores_tensor_validation",
    f"{_MATRIX}:_multiclass_confusion_matrix_tensor_validation",
):
    replacement_for(_place, NOTE)(_class_labels)


@replacement_for(f"{_CURVE}:_multiclass_precision_recall_curve_tensor_validation", NOTE)
def _curve_of_classes(original: Function) -> Function:
    form = _make_form_check(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        arguments = form(preds, target, *args, **kwargs)
        _report_too_many_labels(
            target, arguments["num_classes"] + (arguments["ignore_index"] is not None), "target"
        )

    return check


@replacement_for("functional.classification.group_fairness:_groups_validation", NOTE)
def _groups(original: Function) -> Function:
    form = _make_form_check(original)

    def check(groups: Tensor, num_groups: int) -> None:
        form(groups, num_groups)
        report("{n} groups were above the number of groups", groups > num_groups)

    return check


@replacement_for("utilities.checks:_check_retrieval_target_and_prediction_types", NOTE)
def _retrieval(original: Function) -> Function:
    form = _make_form_check(original)

    def check(preds: Tensor, target: Tensor, allow_non_binary_target: bool = False) -> tuple[Tensor, Tensor]:
        form(preds, target, allow_non_binary_target)
        if not allow_non_binary_target:
            report("{n} targets were not between 0 and 1", (target > 1) | (target < 0))
        target = target.float() if target.is_floating_point() else target.long()
        return preds.float().flatten(), target.flatten()

    return check
