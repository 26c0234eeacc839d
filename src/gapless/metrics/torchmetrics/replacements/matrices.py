"""Confusion matrices of fixed size: ignored targets are marked and not counted, instead of cut out."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._registry import Function, instead_of
from gapless.metrics.torchmetrics.replacements.counting import IGNORED, count_checked

_MATRIX = "functional.classification.confusion_matrix"
SAYS = "counts have a fixed size; ignored targets are not removed but not counted"


def mark(preds: Tensor, target: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (N,) with IGNORED where `keep` is not, and predictions (N,) or (N, C) that there are 0.

    A 0 decides nothing about whether scores are probabilities.
    """
    target = target if target.is_floating_point() else target.long()
    rows = keep if preds.dim() == keep.dim() else keep.unsqueeze(-1)
    return preds.masked_fill(~rows, 0), target.masked_fill(~keep, IGNORED)


def kept(keep: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Rows of `tensors` where `keep` is: one wait for all, where a mask for each would wait for each."""
    index = keep.nonzero().squeeze(1)
    return tuple(tensor.index_select(0, index) for tensor in tensors)


def as_scores(scores: Tensor, how: str) -> Tensor:
    """`scores`, or what ``sigmoid`` or ``softmax`` makes of them where one is not in [0, 1]; before version
    1.6.
    """
    inside = ((scores >= 0) & (scores <= 1)).all()
    return torch.where(inside, scores, scores.sigmoid() if how == "sigmoid" else scores.softmax(1))


@instead_of("utilities.data:_bincount", "`bincount` has a fixed size")
def _bincount(original: Function) -> Function:
    def bincount(x: Tensor, minlength: int | None = None) -> Tensor:
        if minlength is None or x.dim() != 1 or x.is_floating_point():
            return original(x, minlength)  # type: ignore[no-any-return]
        return count_checked(x, minlength)

    return bincount


@instead_of(f"{_MATRIX}:_binary_confusion_matrix_format", SAYS, group="matrices")
def _binary_format(original: Function) -> Function:
    normalize = original.__globals__.get("normalize_logits_if_needed", as_scores)

    def form(
        preds: Tensor,
        target: Tensor,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        convert_to_labels: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Predictions and targets (N,), targets marked; rows cut out only where they are to be kept as a
        list.
        """
        preds, target = preds.flatten(), target.flatten()
        if ignore_index is not None:
            keep = target != ignore_index
            preds, target = mark(preds, target, keep) if convert_to_labels else kept(keep, preds, target)
        if preds.is_floating_point():
            preds = normalize(preds, "sigmoid")
            preds = preds > threshold if convert_to_labels else preds
        return preds, target

    return form


@instead_of(f"{_MATRIX}:_binary_confusion_matrix_update", SAYS, group="matrices")
def _binary_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor) -> Tensor:
        return count_checked((target * 2 + preds).long(), 4).reshape(2, 2)

    return update


@instead_of(f"{_MATRIX}:_multiclass_confusion_matrix_format", SAYS, group="matrices")
def _multiclass_format(original: Function) -> Function:
    def form(
        preds: Tensor, target: Tensor, ignore_index: int | None = None, convert_to_labels: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Predictions (N,), or (N, C) as scores, and targets (N,), marked as in `_binary_format`."""
        keep = None if ignore_index is None else (target != ignore_index).flatten()
        preds, target = original(preds, target, None, convert_to_labels)
        if keep is not None:
            preds, target = mark(preds, target, keep) if convert_to_labels else kept(keep, preds, target)
        return preds, target

    return form


@instead_of(f"{_MATRIX}:_multiclass_confusion_matrix_update", SAYS, group="matrices")
def _multiclass_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, num_classes: int) -> Tensor:
        cells = count_checked(target.long() * num_classes + preds.long(), num_classes**2)
        return cells.reshape(num_classes, num_classes)

    return update


@instead_of(f"{_MATRIX}:_multilabel_confusion_matrix_update", SAYS)
def _multilabel_update(original: Function) -> Function:
    def update(preds: Tensor, target: Tensor, num_labels: int) -> Tensor:
        """Targets that are ignored come as numbers so negative that no label's cell is met: they do not
        count.
        """
        cells = (2 * target + preds) + 4 * torch.arange(num_labels, device=preds.device)
        cells = torch.where(cells < 0, IGNORED, cells.long())
        return count_checked(cells, 4 * num_labels).reshape(num_labels, 2, 2)

    return update
