"""Count integers into a known number of bins, without reading values on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report

IGNORED = -(2**40)
"""Marks an ignored target: far from every label, and far from overflow in 64 bits."""

OUT_OF_RANGE = "{n} labels were outside the range of the classes"

MIN_VALUES_TO_SPREAD = 16384
"""From this many values on, several sets of bins are used and summed, for less contention on each bin."""


def count(values: Tensor, bins: int, keep: Tensor | None = None) -> Tensor:
    """Return how often each of 0 … bins - 1 is among `values`, int64 (bins,); others are not counted.

    `values`: integers of any shape; `keep`: a mask of that shape, of those that count.
    """
    values = values.reshape(-1)
    inside = (values >= 0) & (values < bins)
    if keep is not None:
        inside = inside & keep.reshape(-1)
    return count_in_range(torch.where(inside, values, bins), bins + 1)[:bins]


def _number_of_sets(n: int, bins: int) -> int:
    """Return how many sets of bins to use for `n` values."""
    return max(1, min(256, 65536 // bins)) if n >= MIN_VALUES_TO_SPREAD else 1


def count_checked(values: Tensor, bins: int, marked: bool = True) -> Tensor:
    """Count integers of any shape like `count`, and report values out of range.

    If some are `marked` as ignored, they are below IGNORED / 2, whatever was added to them, and are not
    reported.
    """
    values = values.reshape(-1)
    index = values.clamp(-1, bins).add_(1)
    if marked:
        index.masked_fill_(values < IGNORED // 2, bins + 2)
    counts = count_in_range(index, bins + 3)
    report(OUT_OF_RANGE, counts[0] + counts[bins + 1])
    return counts[1 : bins + 1]


def count_in_range(index: Tensor, bins: int) -> Tensor:
    """Return how often each of 0 … bins - 1 is in `index` (N,), with no other values: int64 (bins,)."""
    index = index.long()
    sets = _number_of_sets(index.numel(), bins)
    if sets > 1:
        index = index + (torch.arange(index.numel(), device=index.device) % sets) * bins
    counts = torch.zeros(sets * bins, dtype=torch.int64, device=index.device)
    counts.scatter_add_(0, index, counts.new_ones(1).expand(index.numel()))
    return counts.view(sets, bins).sum(0) if sets > 1 else counts
