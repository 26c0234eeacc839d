"""Each operation beside the line it replaces, on inputs that depend on a seed only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless import ops
from gapless.torch_internals import VERSION

N, C, D = 12, 5, 4
"""Rows, classes, columns."""


class Inputs:
    """Random tensors on `device`, the same for the same seed, whatever was asked for before."""

    def __init__(self, seed: int, device: str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        random = torch.Generator().manual_seed(seed)

        def put(value: Tensor, floating: bool = False) -> Tensor:
            value = value.to(dtype) if floating else value
            return value.to(device).requires_grad_() if floating else value.to(device)

        self.x = put(torch.randn(N, D, generator=random, dtype=torch.float64), True)
        self.y = put(torch.randn(N, D, generator=random, dtype=torch.float64), True)
        self.scores = put(torch.randn(N, C, generator=random, dtype=torch.float64), True)
        self.share = put(torch.rand(N, D, generator=random, dtype=torch.float64) * 0.98 + 0.01, True)
        self.weight = put(torch.rand(C, generator=random, dtype=torch.float64) + 0.1).to(dtype)
        self.source = put(torch.randn(N * D, generator=random, dtype=torch.float64), True)
        self.mask = put(torch.rand(N, D, generator=random) > 0.5)
        self.rows = put(torch.rand(N, generator=random) > 0.5)
        self.labels = put(torch.randint(0, C, (N,), generator=random))
        self.holes = put(torch.randint(-1, C, (N,), generator=random))
        self.repeats = put(torch.randint(0, 4, (N,), generator=random))
        self.index = put(torch.randint(0, N, (6,), generator=random))
        self.flag = put(torch.rand((), generator=random) > 0.5)


@dataclass(frozen=True)
class Sample:
    """`ours` in the place of `theirs`, which waits `waits` times, forward and backward (-1: some).

    `theirs` gives what `ours` gives, with fill cut off by `cut` where sizes differ.
    """

    name: str
    ours: Callable[[Inputs], Any]
    theirs: Callable[[Inputs], Any]
    waits: int
    cut: Callable[[Any], Any] = lambda output: output


def _front(bounded: Any) -> Any:
    return bounded.values[: int(bounded.number)]


def _distinct(distinct: Any) -> Any:
    number = int(distinct.number)
    return distinct.values[:number], distinct.inverse, distinct.counts[:number]


def _set(x: Tensor, index: Any, value: Any) -> Tensor:
    x = x.clone()
    x[index] = value
    return x


def _per_row(x: Tensor, mask: Tensor, function: Callable[[Tensor], Tensor], outside: float) -> Tensor:
    rows = []
    for values, chosen in zip(x, mask, strict=True):
        row = torch.full_like(values, outside)
        if chosen.any():
            row[chosen] = function(values[chosen])
        rows.append(row)
    return torch.stack(rows)


def _cross_entropy_of_the_selected(i: Inputs) -> Tensor:
    kept = (i.holes != -1) & i.rows
    return F.cross_entropy(i.scores[kept], i.holes[kept], i.weight)


SAMPLES = [
    Sample("masked_sum", lambda i: ops.masked_sum(i.x, i.mask), lambda i: i.x[i.mask].sum(), 2),
    Sample("masked_mean", lambda i: ops.masked_mean(i.x, i.mask), lambda i: i.x[i.mask].mean(), 2),
    Sample("masked_var", lambda i: ops.masked_var(i.x, i.mask), lambda i: i.x[i.mask].var(), 2),
    Sample("masked_std", lambda i: ops.masked_std(i.x, i.mask), lambda i: i.x[i.mask].std(), 2),
    Sample("masked_min", lambda i: ops.masked_min(i.x, i.mask), lambda i: i.x[i.mask].min(), 2),
    Sample("masked_max", lambda i: ops.masked_max(i.x, i.mask), lambda i: i.x[i.mask].max(), 2),
    Sample(
        "masked_softmax",
        lambda i: ops.masked_softmax(i.x, i.mask, 1),
        lambda i: _per_row(i.x, i.mask, lambda v: v.softmax(0), 0.0),
        -1,
    ),
    Sample(
        "masked_log_softmax",
        lambda i: ops.masked_log_softmax(i.x, i.mask, 1),
        lambda i: _per_row(i.x, i.mask, lambda v: v.log_softmax(0), -torch.inf),
        -1,
    ),
    Sample(
        "not_ignored",
        lambda i: ops.not_ignored(i.holes, [-1, 3]),
        lambda i: ~torch.isin(i.holes, torch.tensor([-1, 3], device=i.holes.device)),
        1,
    ),
    Sample(
        "mse_loss",
        lambda i: ops.mse_loss(i.x, i.y, i.mask),
        lambda i: F.mse_loss(i.x[i.mask], i.y[i.mask]),
        4,
    ),
    Sample(
        "l1_loss", lambda i: ops.l1_loss(i.x, i.y, i.mask), lambda i: F.l1_loss(i.x[i.mask], i.y[i.mask]), 4
    ),
    Sample(
        "smooth_l1_loss",
        lambda i: ops.smooth_l1_loss(i.x, i.y, i.rows.unsqueeze(1), beta=0.5),
        lambda i: F.smooth_l1_loss(i.x[i.rows], i.y[i.rows], beta=0.5),
        4,
    ),
    Sample(
        "huber_loss",
        lambda i: ops.huber_loss(i.x, i.y, i.mask, delta=0.5),
        lambda i: F.huber_loss(i.x[i.mask], i.y[i.mask], delta=0.5),
        4,
    ),
    Sample(
        "binary_cross_entropy",
        lambda i: ops.binary_cross_entropy(i.share, i.share.detach().flip(0), i.mask),
        lambda i: F.binary_cross_entropy(i.share[i.mask], i.share.detach().flip(0)[i.mask]),
        3,
    ),
    Sample(
        "binary_cross_entropy_with_logits",
        lambda i: ops.binary_cross_entropy_with_logits(
            i.x, i.share.detach(), i.mask, pos_weight=i.weight[:D]
        ),
        lambda i: F.binary_cross_entropy_with_logits(
            i.x[i.mask], i.share.detach()[i.mask], pos_weight=i.weight[:D].expand(N, D)[i.mask]
        ),
        4,
    ),
    Sample(
        "cross_entropy",
        lambda i: ops.cross_entropy(i.scores, i.holes, i.weight, mask=i.rows, ignore_index=-1),
        _cross_entropy_of_the_selected,
        3,
    ),
    Sample(
        "cross_entropy.smoothed",
        lambda i: ops.cross_entropy(i.scores, i.labels, i.weight, mask=i.rows, label_smoothing=0.1),
        lambda i: F.cross_entropy(i.scores[i.rows], i.labels[i.rows], i.weight, label_smoothing=0.1),
        -1,
    ),
    Sample(
        "nll_loss",
        lambda i: ops.nll_loss(i.scores, i.labels, mask=i.rows),
        lambda i: F.nll_loss(i.scores[i.rows], i.labels[i.rows]),
        3,
    ),
    Sample(
        "assign",
        lambda i: ops.assign(i.x, i.mask, i.y),
        lambda i: _set(i.x, i.mask, i.y[i.mask]),
        -1,
    ),
    Sample(
        "assign.rows",
        lambda i: ops.assign(i.x, i.index, 2.5),
        lambda i: _set(i.x, i.index, 2.5),
        # The number goes over, and so do the zeros of its kind that autograd puts there, made on the host.
        2 if VERSION < (2, 15) else 0,
    ),
    Sample(
        "masked_scatter",
        lambda i: ops.masked_scatter(i.x, i.mask, i.source),
        lambda i: i.x.masked_scatter(i.mask, i.source),
        1,
    ),
    Sample(
        "compact",
        lambda i: ops.compact(i.x, i.rows, size=N),
        lambda i: i.x[i.rows],
        2,
        cut=_front,
    ),
    Sample(
        "masked_select",
        lambda i: ops.masked_select(i.x, i.mask, size=50),
        lambda i: i.x.masked_select(i.mask),
        1,
        cut=_front,
    ),
    Sample(
        "nonzero",
        lambda i: ops.nonzero(i.mask, size=50, fill_value=-1),
        lambda i: i.mask.nonzero(),
        1,
        cut=_front,
    ),
    Sample(
        "argwhere",
        lambda i: ops.argwhere(i.holes, size=12, fill_value=-1),
        lambda i: torch.argwhere(i.holes),
        1,
        cut=_front,
    ),
    Sample(
        "repeat_interleave",
        lambda i: ops.repeat_interleave(i.x, i.repeats, dim=0, output_size=40),
        lambda i: i.x.repeat_interleave(i.repeats, dim=0),
        2,
        cut=_front,
    ),
    Sample(
        "unique",
        lambda i: ops.unique(i.holes, size=7, fill_value=0, return_inverse=True, return_counts=True),
        lambda i: torch.unique(i.holes, return_inverse=True, return_counts=True),
        1,
        cut=_distinct,
    ),
    Sample(
        "unique_consecutive",
        lambda i: ops.unique_consecutive(
            i.holes, size=N, fill_value=0, return_inverse=True, return_counts=True
        ),
        lambda i: torch.unique_consecutive(i.holes, return_inverse=True, return_counts=True),
        1,
        cut=_distinct,
    ),
    Sample(
        "count_unique",
        lambda i: ops.count_unique(i.holes),
        lambda i: torch.full((), torch.unique(i.holes).numel(), device=i.holes.device),
        1,
    ),
    Sample(
        "count_unique.bounded",
        lambda i: ops.count_unique(i.holes, low=-1, high=C, mask=i.rows),
        lambda i: torch.full((), torch.unique(i.holes[i.rows]).numel(), device=i.holes.device),
        2,
    ),
    Sample(
        "bincount",
        lambda i: ops.bincount(i.labels, size=C),
        lambda i: torch.bincount(i.labels, minlength=C),
        2,
    ),
    Sample("histc", lambda i: ops.histc(i.x, 6), lambda i: torch.histc(i.x.detach(), 6), 2),
    Sample(
        "histogram",
        lambda i: ops.histogram(i.x, 6),
        lambda i: tuple(part.to(i.x.device) for part in torch.histogram(i.x.detach().cpu(), 6)),
        -1,
    ),
    Sample(
        "one_hot",
        lambda i: ops.one_hot(i.labels, C),
        lambda i: F.pad(F.one_hot(i.labels), (0, C))[:, :C],
        1,
    ),
    Sample(
        "scalar",
        lambda i: ops.scalar(0.5, i.x.device),
        lambda i: torch.tensor(0.5, device=i.x.device),
        1,
    ),
    Sample(
        "choose",
        lambda i: ops.choose(i.flag, i.x, i.y.flip(0)),
        lambda i: i.x * 1 if i.flag else i.y.flip(0),
        1,
    ),
    Sample(
        "zero_unless",
        lambda i: ops.zero_unless(i.flag, i.x.sum()),
        lambda i: i.x.sum() if i.flag else 0 * i.x.sum(),
        1,
    ),
    Sample(
        "all_finite",
        lambda i: ops.all_finite([i.x, i.y]),
        lambda i: torch.full((), bool(i.x.isfinite().all() and i.y.isfinite().all()), device=i.x.device),
        2,
    ),
]


def gradients(inputs: Inputs, result: Any) -> list[Tensor | None]:
    """Gradients of `result`, weighted unevenly, with respect to all inputs that take one."""
    leaves = [value for value in vars(inputs).values() if value.requires_grad]
    parts = result if isinstance(result, tuple) else (result,)
    total = None
    for part in parts:
        if isinstance(part, Tensor) and part.requires_grad:
            ramp = torch.arange(1, part.numel() + 1, device=part.device).view(part.shape)
            weighted = (part * ramp).sum()
            total = weighted if total is None else total + weighted
    if total is None:
        return []
    return list(torch.autograd.grad(total, leaves, allow_unused=True))
