"""Single points of curves, and areas between two points, chosen on the device instead of on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities.prints import rank_zero_warn

from gapless.metrics.torchmetrics._constants import fill
from gapless.metrics.torchmetrics._registry import Function, replacement_for

NOTE = "points of a curve are chosen on the GPU, not one after the other on the CPU"
LOWEST = float("-inf")


def _element_at(tensor: Tensor, index: Tensor) -> Tensor:
    """Return the element of `tensor` (N,) at `index`, a 0-dim tensor: a gather, where indexing would wait."""
    return tensor.gather(0, index.reshape(1)).squeeze(0)


def _first_greatest(columns: tuple[Tensor, ...], keep: Tensor) -> Tensor:
    """Return the first index, 0-dim, in `keep` where `columns` (N,) are lexicographically greatest."""
    for column in columns:
        among = column.masked_fill(~keep | column.isnan(), LOWEST)
        keep = keep & (among == among.max())
    return keep.to(torch.uint8).argmax()


def _are_alike_floats(*tensors: Tensor) -> bool:
    return all(
        tensor.numel() and tensor.is_floating_point() and tensor.dtype == tensors[0].dtype
        for tensor in tensors
    )


def _missing_threshold(original: Function) -> float:
    """Return TorchMetrics' threshold if no point is good enough: 1e6 before version 1.8, then NaN."""
    return 1e6 if 1e6 in original.__code__.co_consts else float("nan")


def _best_point(
    first: Tensor, bound: Tensor, thresholds: Tensor, least: float, none: float
) -> tuple[Tensor, Tensor]:
    """Return the greatest of `first` (N,) where `bound` (N,) is at least `least`, and its threshold.

    Among equals, the one with the greatest bound, then the greatest threshold. 0 and `none` if there is none.
    """
    n = min(first.numel(), bound.numel(), thresholds.numel())
    first, bound, thresholds = first[:n], bound[:n], thresholds[:n]
    keep = bound >= least
    start = keep.to(torch.uint8).argmax()
    # for Python's `max`, nothing is greater than a `nan` that comes first
    stays = _element_at(first, start).isnan() & keep.any()
    place = torch.where(stays, start, _first_greatest((first, bound, thresholds), keep))
    value = _element_at(first, place).masked_fill(~keep.any(), 0.0)
    return value, _element_at(thresholds, place).masked_fill(value == 0, none)


def _fixed_point_factory(recall_is_fixed: bool) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        none = _missing_threshold(original)

        def choose(
            precision: Tensor, recall: Tensor, thresholds: Tensor, least: float
        ) -> tuple[Tensor, Tensor]:
            if not _are_alike_floats(precision, recall, thresholds):
                return original(precision, recall, thresholds, least)  # type: ignore[no-any-return]
            first, bound = (precision, recall) if recall_is_fixed else (recall, precision)
            return _best_point(first, bound, thresholds, least, none)

        return choose

    return make


replacement_for("functional.classification.recall_fixed_precision:_recall_at_precision", NOTE)(
    _fixed_point_factory(False)
)
replacement_for("functional.classification.precision_fixed_recall:_precision_at_recall", NOTE)(
    _fixed_point_factory(True)
)


@replacement_for("functional.classification.sensitivity_specificity:_sensitivity_at_specificity", NOTE)
@replacement_for("functional.classification.specificity_sensitivity:_specificity_at_sensitivity", NOTE)
def _sensitivity_at_specificity(original: Function) -> Function:
    def choose(first: Tensor, bound: Tensor, thresholds: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """The greatest of `first` (N,) where `bound` is not below `least`; 0 and 1e6 where there is none."""
        if not _are_alike_floats(first, bound):
            return original(first, bound, thresholds, least)  # type: ignore[no-any-return]
        keep = bound >= least
        place = first.masked_fill(~keep, LOWEST).argmax()
        none = ~keep.any()
        return _element_at(first, place).masked_fill(none, 0.0), _element_at(thresholds, place).masked_fill(
            none, 1e6
        )

    return choose


@replacement_for("functional.classification.eer:_binary_eer_compute", NOTE)
def _equal_error(original: Function) -> Function:
    def compute(fpr: Tensor, tpr: Tensor) -> Tensor:
        miss = 1 - tpr
        place = (fpr - miss).abs().argmin()
        return (_element_at(fpr, place) + _element_at(miss, place)) / 2

    return compute


def _area_between(x: Tensor, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the area under `y` over `x` (N,), sorted, from the last `x` equal to `low` to the last equal
    to `high`.
    """
    places = torch.arange(x.numel(), device=x.device)
    first = places.masked_fill(x != low, -1).max()
    last = places.masked_fill(x != high, -1).max()
    within = (places[:-1] >= first) & (places[1:] <= last)
    with torch.no_grad():
        return ((y[1:] + y[:-1]) * (x[1:] - x[:-1]) / 2).masked_fill(~within, 0.0).sum()


@replacement_for("functional.classification.logauc:_binary_logauc_compute", NOTE, group="logauc")
def _log_area(original: Function) -> Function:
    interpolated = original.__globals__["interp"]

    def compute(fpr: Tensor, tpr: Tensor, fpr_range: Any = (0.001, 0.1)) -> Tensor:
        if fpr.numel() < 2 or tpr.numel() < 2 or isinstance(fpr_range, Tensor):
            return original(fpr, tpr, fpr_range)  # type: ignore[no-any-return]
        ends = torch.stack([fill(float(end), fpr.device) for end in fpr_range])
        tpr = torch.cat([tpr, interpolated(ends, fpr, tpr)]).sort().values
        logs = torch.cat([fpr, ends]).sort().values.log10()
        low, high = ends.log10().unbind()
        return _area_between(logs, tpr, low, high) / (high - low)

    return compute


@replacement_for("functional.classification.logauc:_reduce_logauc", NOTE, group="logauc")
def _log_areas(original: Function) -> Function:
    area = _log_area(original)

    def reduce(
        fpr: Any,
        tpr: Any,
        fpr_range: Any = (0.001, 0.1),
        average: str | None = "macro",
        weights: Tensor | None = None,
    ) -> Tensor:
        """Average the classes' areas; reads once whether an area is undefined."""
        none = average is None or average == "none"
        if not (none or average == "macro" or (average == "weighted" and weights is not None)):
            return original(fpr, tpr, fpr_range, average, weights)  # type: ignore[no-any-return]
        scores = torch.stack([area(x, y, fpr_range) for x, y in zip(fpr, tpr, strict=False)])
        missing = scores.isnan()
        if bool(missing.any()):
            rank_zero_warn(f"LogAUC is `nan` for some classes or labels; they are excluded ({average})")
        if none:
            return scores
        if weights is None or average == "macro":
            return scores.nanmean()
        weights = weights.masked_fill(missing, 0)
        shares = original.__globals__["_safe_divide"](weights, weights.sum())
        return (scores.masked_fill(missing, 0) * shares).sum()

    return reduce
