"""States as metrics written for TorchMetrics declare them: attributes with a default and a reduction.

A class that is written so (``add_state``, ``update``, ``compute``) works as it does there, and waits where
its own code waits. What this package's metrics keep is a :class:`~gapless.metrics.statistic.Statistic`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics import distributed
from gapless.metrics.batch import moved
from gapless.trees import mapped

Reduction = Callable[[Any], Any]
States = dict[str, Any]


class Holder(Protocol):
    """A metric that declares states."""

    @property
    def _own_defaults(self) -> States: ...

    @property
    def _own_reductions(self) -> dict[str, Any]: ...

    @property
    def device(self) -> torch.device:
        """Where the states are."""


def summed(states: Tensor) -> Tensor:
    """The sum over the first dimension."""
    return torch.sum(states, dim=0)


def averaged(states: Tensor) -> Tensor:
    """The mean over the first dimension."""
    return torch.mean(states, dim=0)


def largest(states: Tensor) -> Tensor:
    """The largest along the first dimension."""
    return torch.amax(states, dim=0)


def smallest(states: Tensor) -> Tensor:
    """The smallest along the first dimension."""
    return torch.amin(states, dim=0)


def joined(states: Tensor | Sequence[Tensor]) -> Tensor:
    """Tensors one after the other."""
    if isinstance(states, Tensor):
        return states
    if not states:
        raise ValueError("No samples to concatenate")
    return torch.cat([one.reshape(1) if one.dim() == 0 else one for one in states], dim=0)


BY_NAME: dict[str, Reduction] = {
    "mean": averaged,
    "sum": summed,
    "cat": joined,
    "min": smallest,
    "max": largest,
}
FLAT = {summed: "sum", averaged: "sum", largest: "max", smallest: "min"}
"""Reductions for which all states travel in one tensor, and the collective's own name for them."""


def reduction_of(given: Any) -> Reduction | None:
    """What ``dist_reduce_fx`` names; raises ValueError for what is none."""
    found = BY_NAME.get(given, given) if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ValueError(
            "`dist_reduce_fx` must be callable or one of ['mean', 'sum', 'cat', 'min', 'max', None]"
        )
    return found  # type: ignore[no-any-return]


def check_default(default: Any) -> None:
    """Raises ValueError unless `default` is a tensor or an empty list."""
    if not isinstance(default, (Tensor, list)) or (isinstance(default, list) and default):
        raise ValueError("state variable must be a tensor or any empty list (where you can append tensors)")


def taken(metric: Holder) -> States:
    """Copies of the declared states, without their graphs."""
    return {name: copied(getattr(metric, name)) for name in metric._own_defaults}


def copied(value: Any) -> Any:
    """`value` detached and copied; a list by its elements."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [copied(one) for one in value]
    return copy.deepcopy(value)


def put(metric: Holder, states: Mapping[str, Any]) -> States:
    """Give `metric` these states and return those it had."""
    before = {name: getattr(metric, name) for name in states}
    for name, value in states.items():
        setattr(metric, name, value)
    return before


def cleared(metric: Holder) -> None:
    """Set the declared states to their defaults; lists are emptied where they are."""
    for name, default in metric._own_defaults.items():
        held = getattr(metric, name)
        if isinstance(default, Tensor):
            setattr(metric, name, default.detach().clone().to(metric.device))
        elif isinstance(held, list):
            held.clear()
        else:
            setattr(metric, name, [])


def moved_to(metric: Holder, change: Callable[[Tensor], Tensor]) -> None:
    """Put the states and their defaults through `change`, which moves or casts a tensor."""
    for name, default in metric._own_defaults.items():
        metric._own_defaults[name] = mapped(default, change)
        setattr(metric, name, mapped(getattr(metric, name), change))


def merge(metric: Holder, other: Mapping[str, Any], updates: int) -> None:
    """Add the states `other` to those of `metric`, each by its own reduction.

    `updates` is how many there were in both together, of which one is that of `metric` (for means).
    """
    for name in metric._own_defaults:
        if name not in other:
            raise ValueError(f"Expected state variable {name} to be present in incoming state {dict(other)}")
        setattr(
            metric, name, merged(metric._own_reductions[name], other[name], getattr(metric, name), updates)
        )


def merged(reduction: Reduction | None, first: Any, second: Any, updates: int) -> Any:
    """Two states of one name as one."""
    if reduction is averaged:
        return ((updates - 1) * first + second).float() / max(updates, 1)
    if reduction is joined:
        both = (first, second)
        if any(isinstance(one, Tensor) for one in both):
            return joined([joined(one) for one in both if isinstance(one, Tensor) or one])
        return first + second
    if isinstance(first, list):
        return first + second if reduction is None else reduction(first + second)
    stacked = torch.stack((first, second))
    return stacked if reduction is None else reduction(stacked)


def reduce(metric: Holder, group: Any = None, gather: Callable[..., Any] | None = None) -> States:
    """The declared states over the processes of `group`.

    Sums, means and extremes travel together, one collective for each kind; all others together in one gather,
    for which the host waits, since their shapes have to be exchanged. `gather`, called as
    ``gather(tensor, group=group)`` for each tensor, takes the place of both.
    """
    states: States = {name: getattr(metric, name) for name in metric._own_reductions}
    if not states:
        return {}
    if gather is not None:
        found = {name: gathered_by(gather, value, group) for name, value in states.items()}
        return {name: reduced(metric._own_reductions[name], states[name], found[name]) for name in states}
    group = distributed.as_group(group)
    ranks = dist.get_world_size(group)
    flat = [
        name
        for name, value in states.items()
        if metric._own_reductions[name] in FLAT and isinstance(value, Tensor) and value.dtype != torch.bool
    ]
    made = all_reduced(states, metric._own_reductions, flat, group, ranks)
    rest = [name for name in states if name not in made]
    if rest:
        lists = [list(states[n]) if isinstance(states[n], list) else [states[n]] for n in rest]
        for name, found_ in zip(rest, distributed.gather_uneven(lists, metric.device, group), strict=True):
            made[name] = reduced(metric._own_reductions[name], states[name], found_)
    return made


def all_reduced(
    states: States, reductions: Mapping[str, Any], names: Sequence[str], group: Any, ranks: int
) -> States:
    """Those of `names` over all processes, one collective for each kind of reduction."""
    made: States = {}
    carrier = distributed.carrier_device(group)
    for kind, operation in distributed.OPERATIONS.items():
        chosen = [name for name in names if FLAT[reductions[name]] == kind]
        if not chosen:
            continue
        parts = [states[name].detach() for name in chosen]
        sent = moved(distributed.flatten(parts), carrier or parts[0].device)
        dist.all_reduce(sent, op=operation, group=group)
        for name, part, piece in zip(
            chosen, parts, distributed.split(moved(sent, parts[0].device), parts), strict=True
        ):
            made[name] = piece / ranks if reductions[name] is averaged else piece.to(part.dtype)
    return made


def gathered_by(gather: Callable[..., Any], value: Any, group: Any) -> list[list[Tensor]]:
    """For every process the tensors of a state, by a function that gathers one tensor."""
    several = value if isinstance(value, list) else [value]
    by_tensor = [list(gather(one, group=group)) for one in several]
    return [list(of_rank) for of_rank in zip(*by_tensor, strict=True)]


def reduced(reduction: Reduction | None, own: Any, gathered: Sequence[Sequence[Tensor]]) -> Any:
    """A state from the tensors that every process has of it."""
    if isinstance(own, list):
        found: Any = [one for of_rank in gathered for one in of_rank]
        if not found:
            return torch.zeros(0) if reduction is joined else []
    elif reduction is joined:
        found = [one for of_rank in gathered for one in of_rank]
    else:
        found = torch.stack([of_rank[0] for of_rank in gathered])
    return found if reduction is None else reduction(found)
