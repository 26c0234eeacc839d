"""Checks of values: what is wrong with a batch is counted on the device. Checks of form are TorchMetrics'
own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import checks_are_on, report
from gapless.metrics.torchmetrics._registry import Function, instead_of

SAYS = "checks of values are counted on the GPU and reported later"
_STAT = "functional.classification.stat_scores"
_MATRIX = "functional.classification.confusion_matrix"
_CURVE = "functional.classification.precision_recall_curve"

FORMS = 4096
"""Forms of inputs that a check remembers."""


def _form_checked(original: Function) -> Callable[..., dict[str, Any]]:
    """Run `original` on zeros of the same dtypes and shapes, which pass every check of values.

    So its checks of form raise what they raise. Forms that have passed are remembered. Returns the arguments
    that are not tensors, by name; tensors have to come first.
    """
    signature = inspect.signature(original)

    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def run(names: tuple[str, ...], given: list[Any]) -> dict[str, Any]:
        values = [_zeros(*value) if type(value) is tuple else value for value in given]
        plain = len(values) - len(names)
        bound = signature.bind(*values[:plain], **dict(zip(names, values[plain:], strict=False)))
        bound.apply_defaults()
        original(*bound.args)
        return {name: value for name, value in bound.arguments.items() if not isinstance(value, Tensor)}

    def check(*args: Any, **kwargs: Any) -> dict[str, Any]:
        given = [
            (value.dtype, value.shape) if isinstance(value, Tensor) else value
            for value in (*args, *kwargs.values())
        ]
        key = (*given, *kwargs)
        found = known.get(key)
        if found is None:
            found = run(tuple(kwargs), given)
            if len(known) >= FORMS:
                known.clear()
            known[key] = found
        return found

    return check


def _zeros(dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.zeros((), dtype=dtype, device="cpu").expand(shape)


def _other_than(tensor: Tensor, *allowed: int | None) -> Tensor:
    known = [tensor != value for value in allowed if value is not None]
    for other in known[1:]:
        known[0] &= other
    return known[0]


def _labels_of_two(original: Function) -> Function:
    """Targets are 0, 1 or the ignored value; predictions that are labels are 0 or 1."""
    form = _form_checked(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        ignored = form(preds, target, *args, **kwargs)["ignore_index"]
        if not checks_are_on():
            return
        allowed = "0 or 1" if ignored is None else f"0, 1 or {ignored}"
        report("{n} targets were not " + allowed, _other_than(target, 0, 1, ignored))
        if not preds.is_floating_point():
            report("{n} predictions were not 0 or 1", _other_than(preds, 0, 1))

    return check


def _too_many_labels(tensor: Tensor, allowed: int, name: str) -> None:
    """Report that `tensor` holds more different values than `allowed`: sorted, so that its size is known."""
    if tensor.numel() <= allowed or not checks_are_on():
        return
    ordered = tensor.reshape(-1).sort().values
    distinct = (ordered[1:] != ordered[:-1]).sum() + 1
    words = "{n} more different values in `" + name + f"` than the {allowed} expected"
    report(words, (distinct - allowed).clamp(min=0))


def _labels_of_classes(original: Function) -> Function:
    """Predictions and targets that are labels hold no more different values than there are classes."""
    form = _form_checked(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        given = form(preds, target, *args, **kwargs)
        classes = given["num_classes"]
        if classes is None or preds.is_floating_point():
            return  # as it is in TorchMetrics: labels are looked at only where predictions are labels, too
        allowed = classes + (given["ignore_index"] is not None)
        _too_many_labels(target, allowed, "target")
        _too_many_labels(preds, allowed, "preds")

    return check


for _place in (
    f"{_STAT}:_binary_stat_scores_tensor_validation",
    f"{_STAT}:_multilabel_stat_scores_tensor_validation",
    f"{_MATRIX}:_binary_confusion_matrix_tensor_validation",
    f"{_MATRIX}:_multilabel_confusion_matrix_tensor_validation",
    f"{_CURVE}:_binary_precision_recall_curve_tensor_validation",
):
    instead_of(_place, SAYS)(_labels_of_two)
for _place in (
    f"{_STAT}:_multiclass_stat_scores_tensor_validation",
    f"{_MATRIX}:_multiclass_confusion_matrix_tensor_validation",
):
    instead_of(_place, SAYS)(_labels_of_classes)


@instead_of(f"{_CURVE}:_multiclass_precision_recall_curve_tensor_validation", SAYS)
def _curve_of_classes(original: Function) -> Function:
    form = _form_checked(original)

    def check(preds: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> None:
        given = form(preds, target, *args, **kwargs)
        _too_many_labels(target, given["num_classes"] + (given["ignore_index"] is not None), "target")

    return check


@instead_of("functional.classification.group_fairness:_groups_validation", SAYS)
def _groups(original: Function) -> Function:
    form = _form_checked(original)

    def check(groups: Tensor, num_groups: int) -> None:
        form(groups, num_groups)
        report("{n} groups were above the number of groups", groups > num_groups)

    return check


@instead_of("utilities.checks:_check_retrieval_target_and_prediction_types", SAYS)
def _retrieval(original: Function) -> Function:
    form = _form_checked(original)

    def check(preds: Tensor, target: Tensor, allow_non_binary_target: bool = False) -> tuple[Tensor, Tensor]:
        form(preds, target, allow_non_binary_target)
        if not allow_non_binary_target:
            report("{n} targets were not between 0 and 1", (target > 1) | (target < 0))
        target = target.float() if target.is_floating_point() else target.long()
        return preds.float().flatten(), target.flatten()

    return check
