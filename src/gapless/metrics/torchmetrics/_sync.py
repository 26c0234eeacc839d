"""The states of one metric, or of a whole collection, from all ranks in one exchange.

TorchMetrics gathers one state at a time: a barrier, a gather of its shape, a read of the shapes on the host
and a gather of its values. Here all states travel as bytes in one buffer. What is done with them then,
stacking and reducing, is TorchMetrics' own code on the same values, so results are the same to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_mean, dim_zero_min, dim_zero_sum

from gapless.metrics import distributed
from gapless.metrics.torchmetrics._origins import waited_class
from gapless.metrics.torchmetrics._relink import in_library

REDUCED = (dim_zero_sum, dim_zero_mean, dim_zero_max, dim_zero_min)
"""Reductions that need the same shape on every rank."""


def understands(metric: Metric) -> bool:
    """Whether the states of `metric` can be exchanged in one go.

    They can unless a list is kept without being concatenated: how many tensors such a list has is another
    number on each rank.
    """
    return all(
        isinstance(default, Tensor) or metric._reductions[name] is dim_zero_cat
        for name, default in metric._defaults.items()
    )


def _states(metric: Metric) -> list[Tensor]:
    """The metric's states in the order in which its `_sync_dist` asks for them, lists joined as it joins
    them.
    """
    found = []
    for name in metric._reductions:
        state = getattr(metric, name)
        if isinstance(state, list):
            empty = torch.empty(0, device=metric.device, dtype=metric.dtype)
            state = empty if not state else state[0] if len(state) == 1 else dim_zero_cat(state)
        found.append(state.contiguous())
    return found


def announced(metric: Metric) -> bool:
    """Whether shapes can differ between ranks, so that they have to be told before the values are sent.

    A tensor that is reduced has one shape everywhere, or the reduction would fail. Only classes of
    TorchMetrics that keep the shape they began with are trusted in this.
    """
    if any(reduction not in REDUCED for reduction in metric._reductions.values()):
        return True
    return not in_library(waited_class(type(metric)).__module__) or any(
        isinstance(metric, cls) for cls in _changing_shape()
    )


def _changing_shape() -> tuple[type, ...]:
    """Classes whose states take the shape of the data with the first update: a rank with none has another."""
    from torchmetrics import regression

    names = ("ConcordanceCorrCoef", "ExplainedVariance", "PearsonCorrCoef", "R2Score", "RelativeSquaredError")
    return tuple(getattr(regression, name) for name in names if hasattr(regression, name))


def exchange(metrics: Sequence[Metric], group: Any = None) -> list[list[list[Tensor]]]:
    """The states of `metrics` from every rank of `group`: for each metric, for each state, one tensor per
    rank.

    One collective where all shapes are known, two (and one wait, for the shapes) where lists or states of
    other kinds are among them; one more for each further kind of device the states are on.
    """
    group = dist.group.WORLD if group is None else group
    states = [_states(metric) for metric in metrics]
    flat = list(itertools.chain.from_iterable(states))
    known = [not announced(metric) for metric, own in zip(metrics, states, strict=True) for _ in own]
    results: list[list[Tensor]] = [[] for _ in flat]
    with torch.no_grad():
        for kind in sorted({state.device.type for state in flat}):
            members = [i for i, state in enumerate(flat) if state.device.type == kind]
            sent = [flat[i] for i in members]
            carrier = distributed.carrier_device(group) or sent[0].device
            found = distributed.exchange(sent, [known[i] for i in members], carrier, group)
            for i, ranks in zip(members, found, strict=True):
                results[i] = ranks
    rank = dist.get_rank(group)
    for own, ranks in zip(flat, results, strict=True):
        ranks[rank] = own  # the gradient's way, where there is one
    order = iter(results)
    return [[next(order) for _ in own] for own in states]


GATHERED = "_unwaited_gathered"
"""The attribute under which a metric finds what was gathered for it."""


def gathered_before(metric: Metric) -> list[list[Tensor]] | None:
    """What :func:`._exchanged.exchanged` has gathered for `metric`, once."""
    return metric.__dict__.pop(GATHERED, None)  # type: ignore[no-any-return]
