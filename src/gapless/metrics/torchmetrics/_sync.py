"""Gather the states of one metric, or of a whole collection, from all ranks in one exchange.

TorchMetrics gathers one state at a time: a barrier, a gather of its shape, a read of the shapes on the host
and a gather of its values. Here all states are sent as bytes in one buffer. TorchMetrics' own code then
stacks and reduces the same values, so results are bit-identical.
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

SAME_SHAPE_REDUCTIONS = (dim_zero_sum, dim_zero_mean, dim_zero_max, dim_zero_min)
"""Reductions that need the same shape on every rank."""


def can_exchange(metric: Metric) -> bool:
    """Whether the states of `metric` can be gathered in one exchange.

    They cannot if a list is not concatenated: its number of tensors differs between ranks.
    """
    return all(
        isinstance(default, Tensor) or metric._reductions[name] is dim_zero_cat
        for name, default in metric._defaults.items()
    )


def _states(metric: Metric) -> list[Tensor]:
    """Return the metric's states in the order in which its `_sync_dist` asks for them, lists concatenated."""
    states = []
    for name in metric._reductions:
        state = getattr(metric, name)
        if isinstance(state, list):
            empty = torch.empty(0, device=metric.device, dtype=metric.dtype)
            state = empty if not state else state[0] if len(state) == 1 else dim_zero_cat(state)
        states.append(state.contiguous())
    return states


def has_varying_shapes(metric: Metric) -> bool:
    """Whether shapes can differ between ranks, so that they have to be exchanged before the values.

    A reduced tensor has the same shape everywhere, or the reduction would fail. This is only assumed of
    TorchMetrics' classes whose states keep their initial shape.
    """
    if any(reduction not in SAME_SHAPE_REDUCTIONS for reduction in metric._reductions.values()):
        return True
    return not in_library(waited_class(type(metric)).__module__) or any(
        isinstance(metric, cls) for cls in _classes_of_varying_shape()
    )


def _classes_of_varying_shape() -> tuple[type, ...]:
    """Return classes whose states take their shape from the first update: a rank without one differs."""
    from torchmetrics import regression

    names = ("ConcordanceCorrCoef", "ExplainedVariance", "PearsonCorrCoef", "R2Score", "RelativeSquaredError")
    return tuple(getattr(regression, name) for name in names if hasattr(regression, name))


def exchange_states(metrics: Sequence[Metric], group: Any = None) -> list[list[list[Tensor]]]:
    """Return the states of `metrics` from every rank of `group`: per metric and state, one tensor per rank.

    Runs one collective if all shapes are known, otherwise two (and waits once, for the shapes), and as many
    again for each further type of device that states are on.
    """
    group = dist.group.WORLD if group is None else group
    states = [_states(metric) for metric in metrics]
    flat = list(itertools.chain.from_iterable(states))
    is_form_shared = [
        not has_varying_shapes(metric) for metric, own in zip(metrics, states, strict=True) for _ in own
    ]
    results: list[list[Tensor]] = [[] for _ in flat]
    with torch.no_grad():
        for kind in sorted({state.device.type for state in flat}):
            members = [i for i, state in enumerate(flat) if state.device.type == kind]
            sent = [flat[i] for i in members]
            carrier = distributed.carrier_device(group) or sent[0].device
            gathered = distributed.gather_tensors(sent, [is_form_shared[i] for i in members], carrier, group)
            for i, ranks in zip(members, gathered, strict=True):
                results[i] = ranks
    rank = dist.get_rank(group)
    for own, ranks in zip(flat, results, strict=True):
        ranks[rank] = own  # keeps the gradient of this rank
    order = iter(results)
    return [[next(order) for _ in own] for own in states]


GATHERED_ATTRIBUTE = "_unwaited_gathered"
"""The attribute in which a metric's gathered states are left for it."""


def take_gathered(metric: Metric) -> list[list[Tensor]] | None:
    """Return and remove the states that :func:`._exchanged.gather_together` has gathered for `metric`."""
    return metric.__dict__.pop(GATHERED_ATTRIBUTE, None)  # type: ignore[no-any-return]
