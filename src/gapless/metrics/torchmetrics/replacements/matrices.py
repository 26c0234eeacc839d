"""Confusion matrices at a fixed size: ignored targets are marked and not counted, instead of removed."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._registry import Function, replacement_for
from gapless.metrics.torchmetrics.replacements.counting import IGNORED, count_checked

_MATRIX = "functional.classification.confusion_matrix"
NOTE = "counts have a fixed size; ignored targets are not removed but not counted"


def mark_ignored(preds: Tensor, target: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return predictions and targets with 0 and IGNORED where `keep` is false.

    Targets are (N,), predictions (N,) or (N, C). A 0 does not affect whether scores count as probabilities.
    """
    target = target if target.is_floating_point() else target.long()
    rows = keep if preds.dim() == keep.dim() else keep.unsqueeze(-1)
    return preds.masked_fill(~rows, 0), target.masked_fill(~keep, IGNORED)


def select_rows(keep: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of `tensors` where `keep` is true, with one wait for all of them."""
    index = keep.nonzero().squeeze(1)
    return tuple(tensor.index_select(0, index) for tensor in tensors)


def as_scores(scores: Tensor, how: str) -> Tensor:
    """Return `scores`, or their ``sigmoid`` or ``softmax`` if one is not in [0, 1]; before version 1.6."""
    inside = ((scores >= 0) & (scores <= 1)).all()
    return torch.where(inside, scores, scores.sigmoid() if how == "sigmoid" else scores.softmax(1))


@replacement_for("utilities.data:_bincount", "`bincount` has a fixed size")
def _bincount(original: Function) -> Function:
    def bincount(x: Tensor, minlength: int | None = None) -> Tensor:
        if minlength is None or x.dim() != 1 or x.is_floating_point():
            return original(x, minlength)  # type: ignore[no-any-return]
        return count_checked(x, minlength)

    return bincount


@replacement_for(f"{_MATRIX}:_binary_confusion_matrix_format", NOTE, group="matrices")
def _binary_format(original: Function) -> Function:
    normalize = original.__globals__.get("normalize_logits_if_needed", as_scores)

    def form(
        preds: Tensor,
        target: Tensor,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        convert_to_labels: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return predictions and targets (N,) with ignored targets marked; removed only if kept as a list."""
        preds, target = preds.flatten(), target.flatten()
        if ignore_index is not None:
            keep = target != ignore_index
            preds, target = (
                mark_ignored(preds, target, keep) if convert_to_labels else select_rows(keep, preds, target)
            )
        if preds.is_floating_point():
            preds = normalize(preds, "sigmoid")
            preds = preds > threshold if convert_to_labels else preds
        return preds, target

    return form


@replacement_for(f"{_MATRIX}:_binary_confusion_matrix_update", NOTE, group="matrices")
def _binary_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor) -> Tensor:
        return count_checked((target * 2 + preds).long(), 4).reshape(2, 2)

    return update


@replacement_for(f"{_MATRIX}:_multiclass_confusion_matrix_format", NOTE, group="matrices")
def _multiclass_format(original: Function) -> Function:
    def form(
        preds: Tensor, target: Tensor, ignore_index: int | None = None, convert_to_labels: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return predictions (N,), or scores (N, C), and targets (N,), marked as in `_binary_format`."""
        keep = None if ignore_index is None else (target != ignore_index).flatten()
        preds, target = original(preds, target, None, convert_to_labels)
        if keep is not None:
            preds, target = (
                mark_ignored(preds, target, keep) if convert_to_labels else select_rows(keep, preds, target)
            )
        return preds, target

    return form


@replacement_for(f"{_MATRIX}:_multiclass_confusion_matrix_update", NOTE, group="matrices")
def _multiclass_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, num_classes: int) -> Tensor:
        cells = count_checked(target.long() * num_classes + preds.long(), num_classes**2)
        return cells.reshape(num_classes, num_classes)

    return update


@replacement_for(f"{_MATRIX}:_multilabel_confusion_matrix_update", NOTE)
def _multilabel_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, num_labels: int) -> Tensor:
        """Return the matrices; ignored targets are so negative that they fall into no label's cell."""
        cells = (2 * target + preds) + 4 * torch.arange(num_labels, device=preds.device)
        cells = torch.where(cells < 0, IGNORED, cells.long())
        return count_checked(cells, 4 * num_labels).reshape(num_labels, 2, 2)

    return update
