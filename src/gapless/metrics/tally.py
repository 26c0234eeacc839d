"""How a device counts labels into a table of classes: in few kernels, without many threads at one address."""

from __future__ import annotations

import torch
from torch import Tensor

MANY = 1 << 15
"""Labels from which on adding each to its place makes threads queue: they are counted block by block."""
BINS = 4096
"""What a block of threads can count in memory of its own."""


def tally(
    table: Tensor, one: Tensor, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> bool:
    """Add labels, int64 of the same shape, to `table` ``(3, classes + 3)`` of a CUDA device.

    `one` is 1 there. `scores` says that the predicted are positions of largest scores, which are classes.
    Returns False, and adds nothing, where the operators would be refused: under deterministic algorithms and
    in compiled code.
    """
    if (
        table.device.type != "cuda"
        or torch.compiler.is_compiling()
        or torch.are_deterministic_algorithms_enabled()
    ):
        return False
    classes = table.shape[1] - 3
    width = classes + 2
    if target.numel() >= MANY and width <= BINS:
        if width * width <= BINS:
            by_pairs(table, classes, target, predicted, ignored, scores)
        else:
            by_class(table, classes, target, predicted, ignored, scores)
        return True
    if ignored is not None or not scores:
        return False
    actual = target.clamp(-1, classes).reshape(-1)
    predicted = predicted.reshape(-1)
    hit = torch.empty_like(actual)
    torch.eq(predicted, target.reshape(-1), out=hit)
    # What is below the classes counts from the end, and so falls into the last place, with what is above.
    table[0, 1 : classes + 2].put_(actual, one.expand_as(actual), accumulate=True)
    table[1, 1 : classes + 1].put_(predicted, one.expand_as(predicted), accumulate=True)
    table[2, 1 : classes + 1].put_(predicted, hit, accumulate=True)
    return True


def add_places(table: Tensor, at: Tensor, one: Tensor) -> None:
    """Count the places `at`, ``(N,)`` of int64, in `table`, of one dimension, of whatever device."""
    size = len(table)
    many = at.device.type == "cuda" and len(at) >= MANY and size <= BINS
    if many and not (torch.compiler.is_compiling() or torch.are_deterministic_algorithms_enabled()):
        table.add_(torch.histc(at, size, 0, size))
    else:
        table.scatter_add_(0, at, one.expand_as(at))


def by_pairs(
    table: Tensor, classes: int, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> None:
    """Count pairs of classes, of which there are few."""
    width = classes + 2
    pairs = target.clamp(-1, classes)
    predicted = predicted if scores else predicted.clamp(-1, classes)
    torch.add(predicted, pairs, alpha=width, out=pairs)
    if ignored is not None:
        pairs.masked_fill_(target == ignored, -2 * width)  # outside of what is counted
    found = torch.histc(pairs, width * width, -width - 1, width * width - width - 1).view(width, width)
    fresh = found.new_empty((3, width))
    for dim, row in ((1, fresh[0]), (0, fresh[1])):
        torch.sum(found, dim, out=row)
    fresh[2].copy_(found.diagonal())
    table[:, :width].add_(fresh)


def by_class(
    table: Tensor, classes: int, target: Tensor, predicted: Tensor, ignored: int | None, scores: bool
) -> None:
    """Count targets, predictions and hits one after the other."""
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
