"""Count labels into a table of classes on a device, in few kernels and without contention."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_LABELS_FOR_BLOCKS = 1 << 15
"""Labels from which atomic additions to single cells would queue: then each block counts its own."""
MAX_BLOCK_BINS = 4096
"""Bins that fit into a block's shared memory."""


def count_on_cuda(
    table: Tensor, unit: Tensor, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> bool:
    """Add labels (int64, same shape) to `table` ``(3, classes + 3)`` on a CUDA device.

    `unit` is a 1 on the device. `scores` says that predictions are positions of largest scores, hence valid.
    Returns False, and adds nothing, under deterministic algorithms and in compiled code, where the operators
    are not allowed.
    """
    if (
        table.device.type != "cuda"
        or torch.compiler.is_compiling()
        or torch.are_deterministic_algorithms_enabled()
    ):
        return False
    classes = table.shape[1] - 3
    width = classes + 2
    if target.numel() >= MIN_LABELS_FOR_BLOCKS and width <= MAX_BLOCK_BINS:
        if width * width <= MAX_BLOCK_BINS:
            count_pairs(table, classes, target, predicted, ignored, scores)
        else:
            count_classes(table, classes, target, predicted, ignored, scores)
        return True
    if ignored is not None or not scores:
        return False
    actual = target.clamp(-1, classes).reshape(-1)
    predicted = predicted.reshape(-1)
    hit = torch.empty_like(actual)
    torch.eq(predicted, target.reshape(-1), out=hit)
    # Negative labels index from the end: into the last cell, like those above the classes.
    table[0, 1 : classes + 2].put_(actual, unit.expand_as(actual), accumulate=True)
    table[1, 1 : classes + 1].put_(predicted, unit.expand_as(predicted), accumulate=True)
    table[2, 1 : classes + 1].put_(predicted, hit, accumulate=True)
    return True


def count_indices(table: Tensor, at: Tensor, unit: Tensor) -> None:
    """Count the indices `at`, int64 ``(N,)``, in the 1-dim `table`, on any device."""
    size = len(table)
    many = at.device.type == "cuda" and len(at) >= MIN_LABELS_FOR_BLOCKS and size <= MAX_BLOCK_BINS
    if many and not (torch.compiler.is_compiling() or torch.are_deterministic_algorithms_enabled()):
        table.add_(torch.histc(at, size, 0, size))
    else:
        table.scatter_add_(0, at, unit.expand_as(at))


def count_pairs(
    table: Tensor, classes: int, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> None:
    """Count pairs of classes in one histogram; for few classes."""
    width = classes + 2
    pairs = target.clamp(-1, classes)
    predicted = predicted if scores else predicted.clamp(-1, classes)
    torch.add(predicted, pairs, alpha=width, out=pairs)
    if ignored is not None:
        pairs.masked_fill_(target == ignored, -2 * width)  # outside of the histogram
    pair_counts = torch.histc(pairs, width * width, -width - 1, width * width - width - 1).view(width, width)
    fresh = pair_counts.new_empty((3, width))
    for dim, row in ((1, fresh[0]), (0, fresh[1])):
        torch.sum(pair_counts, dim, out=row)
    fresh[2].copy_(pair_counts.diagonal())
    table[:, :width].add_(fresh)


def count_classes(
    table: Tensor, classes: int, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> None:
    """Count targets, predictions and hits in a histogram each."""
    width, outside = classes + 2, -2
    actual = target.clamp(-1, classes)
    predicted = predicted if scores else predicted.clamp(-1, classes)
    if ignored is not None:
        left_out = target == ignored
        actual.masked_fill_(left_out, outside)
        predicted = predicted.masked_fill(left_out, outside)
    fresh = actual.new_empty((3, width))
    torch.histc(actual, width, -1, classes + 1, out=fresh[0])
    torch.histc(predicted, width, -1, classes + 1, out=fresh[1])
    actual.masked_fill_(actual != predicted, outside)
    torch.histc(actual, width, -1, classes + 1, out=fresh[2])
    table[:, :width].add_(fresh)
