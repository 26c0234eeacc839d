"""Checks of shapes, and labels from a model's outputs, derived once per update for all metrics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.host import argmax


def check_same_shape(batch: Batch) -> None:
    """Raise RuntimeError unless predictions and target have the same shape."""
    checks.check_same_shape(*batch.args)


def check_binary(batch: Batch, samplewise: bool) -> None:
    """Raise RuntimeError or ValueError for shapes that a binary metric rejects."""
    check_same_shape(batch)
    if samplewise and batch.args[0].dim() < 2:
        raise ValueError("Expected input to be at least 2D when multidim_average is set to `samplewise`")


def check_multilabel(batch: Batch, labels: int, samplewise: bool) -> None:
    """Raise RuntimeError or ValueError for shapes that a metric of `labels` labels rejects."""
    check_same_shape(batch)
    shape = batch.args[0].shape
    if len(shape) < 2 or shape[1] != labels:
        actual = shape[1] if len(shape) > 1 else f"the shape {tuple(shape)}"
        raise ValueError(
            "Expected both `target.shape[1]` and `preds.shape[1]` to be equal to the number of labels"
            f" but got {actual} and expected {labels}"
        )
    if samplewise and len(shape) < 3:
        raise ValueError("Expected input to be at least 3D when multidim_average is set to `samplewise`")


def check_multiclass(batch: Batch, classes: int | None, samplewise: bool) -> None:
    """Raise ValueError for shapes that a metric of `classes` classes rejects."""
    preds, target = batch.args
    if preds.dim() == target.dim() + 1:
        _check_scores(preds, target, classes)
        min_dims, subject = 3, "If `preds` have one dimension more than `target`, the shape of `preds`"
    elif preds.dim() == target.dim():
        if preds.shape != target.shape:
            raise ValueError(
                "The `preds` and `target` should have the same shape,"
                f" got `preds` with shape={preds.shape} and `target` with shape={target.shape}."
            )
        min_dims, subject = 2, "When `preds` and `target` have the same shape, the shape of `preds`"
    else:
        raise ValueError(
            "Either `preds` and `target` both should have the (same) shape (N, ...), or `target` should be "
            "(N, ...) and `preds` should be (N, C, ...)."
        )
    if samplewise and preds.dim() < min_dims:
        raise ValueError(
            f"{subject} should be at least {min_dims}D when multidim_average is set to `samplewise`"
        )


def _check_scores(preds: Tensor, target: Tensor, classes: int | None) -> None:
    """Raise ValueError unless `preds` are scores ``(N, C, ...)`` for targets ``(N, ...)``."""
    start = "If `preds` have one dimension more than `target`, "
    if not preds.is_floating_point():
        raise ValueError(start + "`preds` should be a float tensor.")
    if classes is not None and preds.shape[1] != classes:
        raise ValueError(start + "`preds.shape[1]` should be equal to number of classes.")
    if preds.shape[:1] + preds.shape[2:] != target.shape:
        raise ValueError(
            start
            + "the shape of `preds` should be (N, C, ...), and the shape of `target` should be (N, ...)."
        )


def as_int64(value: Tensor) -> Tensor:
    """Return `value` as int64, without a copy if it is one."""
    return value if value.dtype == torch.int64 else value.to(torch.int64)


def target_classes(batch: Batch) -> Tensor:
    """Return the target as int64, in its own shape."""
    return as_int64(batch.args[1])


def top_class(batch: Batch) -> Tensor:
    """Return the predicted classes as int64, ``[N, ...]``: of the largest score, or the labels themselves."""
    preds, target = batch.args
    return argmax(preds, 1) if preds.dim() == target.dim() + 1 else as_int64(preds)


def target_or_top_class(batch: Batch, top_k: int) -> Tensor:
    """Return the target if it is among the `top_k` largest scores, else the class of the largest score."""
    preds, target = batch.args[0], batch.derive(target_classes)
    if preds.dim() != target.dim() + 1:
        raise RuntimeError("`top_k` above 1 needs scores of every class, but `preds` holds labels")
    top = (preds if preds.is_floating_point() else preds.float()).topk(top_k, dim=1).indices
    return torch.where((top == target.unsqueeze(1)).any(dim=1), target, top[:, 0])


def probabilities(
    scores: Tensor,
    logits: bool | None,
    kept: Tensor | None = None,
    normalize: Callable[[Tensor], Tensor] = torch.sigmoid,
    out: Tensor | None = None,
) -> Tensor:
    """Return `scores` as probabilities, normalizing them if they are logits.

    With `logits` None they are logits if a value is outside [0, 1]; only values that are `kept` decide, if
    that is passed. A new tensor is written to `out`, if there is one.
    """
    if logits is not None:
        return normalize(scores) if logits else scores
    outside = scores.clamp(0, 1) != scores
    if kept is not None:
        outside = outside & kept
    normalized = normalize(scores)
    if out is None:
        return torch.where(outside.any(), normalized, scores)
    return torch.where(outside.any(), normalized, scores, out=out)


def kept_mask(batch: Batch, ignore_index: int | None) -> Tensor | None:
    """Return a mask of the targets other than `ignore_index`; None if all targets count."""
    return None if ignore_index is None else batch.args[1] != ignore_index


def binary_probabilities(batch: Batch, logits: bool | None, ignore_index: int | None) -> Tensor:
    """Return the scores as probabilities, in their own shape."""
    return probabilities(batch.args[0], logits, kept_mask(batch, ignore_index))


def binary_labels(
    batch: Batch, threshold: float, logits: bool | None, ignore_index: int | None = None
) -> Tensor:
    """Return predictions as bools: probabilities above the threshold, or the labels themselves."""
    preds = batch.args[0]
    if preds.is_floating_point():
        above: Tensor = batch.derive(binary_probabilities, logits, ignore_index) > threshold
        return above
    return preds if preds.dtype == torch.bool else preds == 1


def count_invalid_labels(batch: Batch) -> Tensor | None:
    """Return how many predicted labels are neither 0 nor 1; None if the dtype allows no others."""
    preds = batch.args[0]
    if preds.is_floating_point() or preds.dtype == torch.bool:
        return None
    return ((preds != 0) & (preds != 1)).sum()
