"""Labels from what a model puts out, derived once per update however many metrics need them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gapless.metrics import checks
from gapless.metrics.batch import Batch
from gapless.metrics.host import argmax


def same_shape(batch: Batch) -> None:
    """Raises RuntimeError unless predictions and target have the same shape."""
    checks.same_shape(*batch.args)


def check_binary(batch: Batch, samplewise: bool) -> None:
    """Raises RuntimeError or ValueError for shapes that a binary metric cannot take."""
    same_shape(batch)
    if samplewise and batch.args[0].dim() < 2:
        raise ValueError("Expected input to be at least 2D when multidim_average is set to `samplewise`")


def check_multilabel(batch: Batch, labels: int, samplewise: bool) -> None:
    """Raises RuntimeError or ValueError for shapes that a metric of `labels` labels cannot take."""
    same_shape(batch)
    shape = batch.args[0].shape
    if len(shape) < 2 or shape[1] != labels:
        seen = shape[1] if len(shape) > 1 else f"the shape {tuple(shape)}"
        raise ValueError(
            "Expected both `target.shape[1]` and `preds.shape[1]` to be equal to the number of labels"
            f" but got {seen} and expected {labels}"
        )
    if samplewise and len(shape) < 3:
        raise ValueError("Expected input to be at least 3D when multidim_average is set to `samplewise`")


def check_multiclass(batch: Batch, classes: int | None, samplewise: bool) -> None:
    """Raises ValueError for shapes that a metric of `classes` classes cannot take."""
    preds, target = batch.args
    if preds.dim() == target.dim() + 1:
        _check_scores(preds, target, classes)
        least, what = 3, "If `preds` have one dimension more than `target`, the shape of `preds`"
    elif preds.dim() == target.dim():
        if preds.shape != target.shape:
            raise ValueError(
                "The `preds` and `target` should have the same shape,"
                f" got `preds` with shape={preds.shape} and `target` with shape={target.shape}."
            )
        least, what = 2, "When `preds` and `target` have the same shape, the shape of `preds`"
    else:
        raise ValueError(
            "Either `preds` and `target` both should have the (same) shape (N, ...), or `target` should be "
            "(N, ...) and `preds` should be (N, C, ...)."
        )
    if samplewise and preds.dim() < least:
        raise ValueError(f"{what} should be at least {least}D when multidim_average is set to `samplewise`")


def _check_scores(preds: Tensor, target: Tensor, classes: int | None) -> None:
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


def integers(value: Tensor) -> Tensor:
    """`value` as int64."""
    return value if value.dtype == torch.int64 else value.to(torch.int64)


def target_classes(batch: Batch) -> Tensor:
    """The target as int64, in its own shape."""
    return integers(batch.args[1])


def top_class(batch: Batch) -> Tensor:
    """The predicted class, int64, in the shape of the target: the largest score, or the labels as given."""
    preds, target = batch.args
    return argmax(preds, 1) if preds.dim() == target.dim() + 1 else integers(preds)


def best_of(batch: Batch, top_k: int) -> Tensor:
    """The target where it is among the `top_k` largest scores, the largest elsewhere."""
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
    """`scores`, normalized if they are logits; with None, values outside [0, 1] tell that they are.

    Only those `kept` tell it, where that is given. New tensors are written to `out`, if they can be.
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


def kept_targets(batch: Batch, ignore_index: int | None) -> Tensor | None:
    """Where the target counts; None where all do."""
    return None if ignore_index is None else batch.args[1] != ignore_index


def binary_probabilities(batch: Batch, logits: bool | None, ignore_index: int | None) -> Tensor:
    """Scores as probabilities, in their own shape."""
    return probabilities(batch.args[0], logits, kept_targets(batch, ignore_index))


def binary_labels(
    batch: Batch, threshold: float, logits: bool | None, ignore_index: int | None = None
) -> Tensor:
    """Predictions as booleans: probabilities above the threshold, or the labels as given."""
    preds = batch.args[0]
    if preds.is_floating_point():
        above: Tensor = batch.derive(binary_probabilities, logits, ignore_index) > threshold
        return above
    return preds if preds.dtype == torch.bool else preds == 1


def strange_labels(batch: Batch) -> Tensor | None:
    """How many predicted labels are neither 0 nor 1; None where there can be none."""
    preds = batch.args[0]
    if preds.is_floating_point() or preds.dtype == torch.bool:
        return None
    return ((preds != 0) & (preds != 1)).sum()
