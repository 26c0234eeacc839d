"""Counting integers into bins of a known number, without a look at their values on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report

IGNORED = -(2**40)
"""Stands for a target that is to be ignored: far from every label, and far from overflow in 64 bits."""

OUT_OF_RANGE = "{n} labels were outside the range of the classes"

SPREAD_FROM = 16384
"""So many values and more are counted in several sets of bins that are added up: fewer of them meet in one.
"""


def count(values: Tensor, bins: int, keep: Tensor | None = None) -> Tensor:
    """How often each of 0 … bins - 1 is among `values`, int64 (bins,). Others, and those not in `keep`, do
    not count.

    `values`: integers of any shape; `keep`: a mask of that shape.
    """
    values = values.reshape(-1)
    inside = (values >= 0) & (values < bins)
    if keep is not None:
        inside = inside & keep.reshape(-1)
    return tally(torch.where(inside, values, bins), bins + 1)[:bins]


def _sets(n: int, bins: int) -> int:
    return max(1, min(256, 65536 // bins)) if n >= SPREAD_FROM else 1


def count_checked(values: Tensor, bins: int, marked: bool = True) -> Tensor:
    """`count` of integers of any shape, with values out of range reported.

    Where some are `marked` as ignored, they are below IGNORED / 2, whatever has been added, and are not
    reported.
    """
    values = values.reshape(-1)
    index = values.clamp(-1, bins).add_(1)
    if marked:
        index.masked_fill_(values < IGNORED // 2, bins + 2)
    found = tally(index, bins + 3)
    report(OUT_OF_RANGE, found[0] + found[bins + 1])
    return found[1 : bins + 1]


def tally(index: Tensor, bins: int) -> Tensor:
    """How often each of 0 … bins - 1 is in `index` (N,), which holds nothing else: int64 (bins,)."""
    index = index.long()
    sets = _sets(index.numel(), bins)
    if sets > 1:
        index = index + (torch.arange(index.numel(), device=index.device) % sets) * bins
    found = torch.zeros(sets * bins, dtype=torch.int64, device=index.device)
    found.scatter_add_(0, index, found.new_ones(1).expand(index.numel()))
    return found.view(sets, bins).sum(0) if sets > 1 else found
