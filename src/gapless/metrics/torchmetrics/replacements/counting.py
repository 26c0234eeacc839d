"""Counting integers into bins of a known number, without a look at their values on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.metrics.torchmetrics._checks import report

IGNORED = -(2**40)
"""Stands for a target that is to be ignored: far from every label, and far from overflow in 64 bits."""

OUT_OF_RANGE = "{n} labels were outside the range of the classes"

SPREAD_FROM = 16384
"""So many values and more are counted in several sets of bins that are added up: fewer of them meet in one."""


def count(values: Tensor, bins: int, keep: Tensor | None = None) -> Tensor:
    """How often each of 0 … bins - 1 is among `values`, int64 (bins,). Others, and those not in `keep`, do not count.

    `values`: integers of any shape; `keep`: a mask of that shape.
    """
    values = values.reshape(-1)
    inside = (values >= 0) & (values < bins)
    if keep is not None:
        inside = inside & keep.reshape(-1)
    index = torch.where(inside, values, bins).long()
    sets = _sets(index.numel(), bins + 1)
    if sets > 1:
        index = index + (torch.arange(index.numel(), device=index.device) % sets) * (bins + 1)
    found = torch.zeros(sets * (bins + 1), dtype=torch.int64, device=index.device)
    found.scatter_add_(0, index, torch.ones_like(index))
    return found.view(sets, bins + 1).sum(0)[:bins] if sets > 1 else found[:bins]


def _sets(n: int, bins: int) -> int:
    return max(1, min(256, 65536 // bins)) if n >= SPREAD_FROM else 1


def count_checked(values: Tensor, bins: int) -> Tensor:
    """`count`, with values out of range reported, save those that stand for ignored targets.

    Ignored targets make values below IGNORED / 2, whatever has been added to them.
    """
    values = values.reshape(-1)
    report(OUT_OF_RANGE, ((values < 0) & (values > IGNORED // 2)) | (values >= bins))
    return count(values, bins)
