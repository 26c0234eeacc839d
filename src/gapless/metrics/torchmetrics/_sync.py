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

from gapless.metrics.packing import Form, form_of, packed, size_of, unpacked
from gapless.metrics.torchmetrics._constants import tensor_without_waiting
from gapless.metrics.torchmetrics._origins import waited_class
from gapless.metrics.torchmetrics._relink import in_library

REDUCED = (dim_zero_sum, dim_zero_mean, dim_zero_max, dim_zero_min)
"""Reductions that need the same shape on every rank."""

DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
"""In the order of the codes that headers carry."""

DIMS = 8
"""Most dimensions a state may have to be announced in a header."""


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


def transport(group: Any, device: torch.device) -> torch.device:
    """Where a buffer has to be for `group` to carry it: `device`, or the current GPU where the group has no
    other.
    """
    try:
        backends = str(dist.get_backend_config(group))
    except (AttributeError, RuntimeError):
        return device
    kinds = [part.partition(":")[0] for part in backends.split(",") if ":" in part]
    if not kinds or device.type in kinds:
        return device
    return (
        torch.device(kinds[0], torch.cuda.current_device()) if kinds[0] == "cuda" else torch.device(kinds[0])
    )


def exchange(metrics: Sequence[Metric], group: Any = None) -> list[list[list[Tensor]]]:
    """The states of `metrics` from every rank of `group`: for each metric, for each state, one tensor per
    rank.

    One collective where all shapes are known, two (and one wait, for the shapes) where lists or states of
    other kinds are among them; one more for each further kind of device the states are on.
    """
    group = dist.group.WORLD if group is None else group
    states = [_states(metric) for metric in metrics]
    flat = list(itertools.chain.from_iterable(states))
    flags = [announced(metric) for metric, own in zip(metrics, states, strict=True) for _ in own]
    results: list[list[Tensor]] = [[] for _ in flat]
    with torch.no_grad():
        for kind in sorted({state.device.type for state in flat}):
            members = [i for i, state in enumerate(flat) if state.device.type == kind]
            found = _exchange_on([flat[i] for i in members], [flags[i] for i in members], group)
            for i, ranks in zip(members, found, strict=True):
                results[i] = ranks
    rank = dist.get_rank(group)
    for own, ranks in zip(flat, results, strict=True):
        ranks[rank] = own  # the gradient's way, where there is one
    order = iter(results)
    return [[next(order) for _ in own] for own in states]


def _exchange_on(states: list[Tensor], told_first: list[bool], group: Any) -> list[list[Tensor]]:
    """`exchange` for tensors of one kind of device; the forms of some have to be told first."""
    device = transport(group, states[0].device)
    world = dist.get_world_size(group)
    forms = [[form_of(state) for state in states] for _ in range(world)]
    ragged = [i for i, flag in enumerate(told_first) if flag]
    if ragged:
        for rank, told in enumerate(_forms([states[i] for i in ragged], device, group)):
            for i, form in zip(ragged, told, strict=True):
                forms[rank][i] = form
    own = packed(states, max(size_of(rank) for rank in forms)).to(device)
    parts = _all_gather(own, world, group)
    home = states[0].device
    found = [unpacked(part.to(home), form) for part, form in zip(parts, forms, strict=True)]
    return [list(ranks) for ranks in zip(*found, strict=True)]


def _forms(states: list[Tensor], device: torch.device, group: Any) -> list[list[Form]]:
    """The dtype and shape of each of `states` on each rank. The one place that waits: shapes are for the
    host.
    """
    rows = [[DTYPES.index(s.dtype), s.dim(), *s.shape, *(0,) * (DIMS - s.dim())] for s in states]
    header = tensor_without_waiting(rows, dtype=torch.int64, device=device)
    told = torch.stack(_all_gather(header, dist.get_world_size(group), group)).tolist()
    return [[(DTYPES[row[0]], tuple(row[2 : 2 + row[1]])) for row in rank] for rank in told]


def _all_gather(mine: Tensor, world: int, group: Any) -> list[Tensor]:
    everyone = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everyone, mine, group=group)
    return everyone


GATHERED = "_unwaited_gathered"
"""The attribute under which a metric finds what was gathered for it."""


def gathered_before(metric: Metric) -> list[list[Tensor]] | None:
    """What :func:`._exchanged.exchanged` has gathered for `metric`, once."""
    return metric.__dict__.pop(GATHERED, None)  # type: ignore[no-any-return]
