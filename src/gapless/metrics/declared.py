"""States declared as in TorchMetrics: attributes with a default and a reduction.

A class written in this way (``add_state``, ``update``, ``compute``) works as it does there, and waits where
its own code waits. This package's metrics use :class:`~gapless.metrics.statistic.Statistic` instead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gapless.metrics import distributed
from gapless.metrics.batch import move_to_device
from gapless.trees import map_tensors

ReduceFunction = Callable[[Any], Any]
States = dict[str, Any]


class DeclaringMetric(Protocol):
    """A metric with declared states."""

    @property
    def _own_defaults(self) -> States: ...

    @property
    def _own_reductions(self) -> dict[str, Any]: ...

    @property
    def device(self) -> torch.device:
        """The device of the states."""


def sum_rows(states: Tensor) -> Tensor:
    """Return the sum over the first dimension."""
    return torch.sum(states, dim=0)


def mean_of_rows(states: Tensor) -> Tensor:
    """Return the mean over the first dimension."""
    return torch.mean(states, dim=0)


def max_of_rows(states: Tensor) -> Tensor:
    """Return the largest value along the first dimension."""
    return torch.amax(states, dim=0)


def min_of_rows(states: Tensor) -> Tensor:
    """Return the smallest value along the first dimension."""
    return torch.amin(states, dim=0)


def concatenate(states: Tensor | Sequence[Tensor]) -> Tensor:
    """Concatenate tensors along the first dimension; a 0-dim tensor counts as one row."""
    if isinstance(states, Tensor):
        return states
    if not states:
        raise ValueError("No samples to concatenate")
    return torch.cat([state.reshape(1) if state.dim() == 0 else state for state in states], dim=0)


REDUCE_FUNCTIONS: dict[str, ReduceFunction] = {
    "mean": mean_of_rows,
    "sum": sum_rows,
    "cat": concatenate,
    "min": min_of_rows,
    "max": max_of_rows,
}
"""Reduce functions by the names that ``dist_reduce_fx`` accepts."""
COLLECTIVE_NAMES = {sum_rows: "sum", mean_of_rows: "sum", max_of_rows: "max", min_of_rows: "min"}
"""Reductions that one collective for all states can do, with the collective's name."""


def reduction_of(dist_reduce_fx: Any) -> ReduceFunction | None:
    """Return the function that ``dist_reduce_fx`` names; raise ValueError if it is none."""
    function = (
        REDUCE_FUNCTIONS.get(dist_reduce_fx, dist_reduce_fx)
        if isinstance(dist_reduce_fx, str)
        else dist_reduce_fx
    )
    if function is not None and not callable(function):
        raise ValueError(
            "`dist_reduce_fx` must be callable or one of ['mean', 'sum', 'cat', 'min', 'max', None]"
        )
    return function  # type: ignore[no-any-return]


def check_default(default: Any) -> None:
    """Raise ValueError unless `default` is a tensor or an empty list."""
    if not isinstance(default, (Tensor, list)) or (isinstance(default, list) and default):
        raise ValueError("state variable must be a tensor or any empty list (where you can append tensors)")


def copy_states(metric: DeclaringMetric) -> States:
    """Return detached copies of the declared states."""
    return {name: copy_state(getattr(metric, name)) for name in metric._own_defaults}


def copy_state(value: Any) -> Any:
    """Return a detached copy of `value`; of a list, a list of copies."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [copy_state(element) for element in value]
    return copy.deepcopy(value)


def swap_states(metric: DeclaringMetric, states: Mapping[str, Any]) -> States:
    """Set the states of `metric` and return the previous ones."""
    before = {name: getattr(metric, name) for name in states}
    for name, value in states.items():
        setattr(metric, name, value)
    return before


def reset_states(metric: DeclaringMetric) -> None:
    """Set the declared states to their defaults; lists are emptied in place."""
    for name, default in metric._own_defaults.items():
        held = getattr(metric, name)
        if isinstance(default, Tensor):
            setattr(metric, name, default.detach().clone().to(metric.device))
        elif isinstance(held, list):
            held.clear()
        else:
            setattr(metric, name, [])


def transform_states(metric: DeclaringMetric, change: Callable[[Tensor], Tensor]) -> None:
    """Apply `change`, which moves or casts a tensor, to the states and their defaults."""
    for name, default in metric._own_defaults.items():
        metric._own_defaults[name] = map_tensors(default, change)
        setattr(metric, name, map_tensors(getattr(metric, name), change))


def merge_states(metric: DeclaringMetric, other: Mapping[str, Any], updates: int) -> None:
    """Merge the states `other` into those of `metric`, each with its own reduction.

    `updates` is the number of updates in both together, one of them in `metric`; it weights means.
    """
    for name in metric._own_defaults:
        if name not in other:
            raise ValueError(f"Expected state variable {name} to be present in incoming state {dict(other)}")
        setattr(
            metric,
            name,
            merge_values(metric._own_reductions[name], other[name], getattr(metric, name), updates),
        )


def merge_values(reduction: ReduceFunction | None, first: Any, second: Any, updates: int) -> Any:
    """Return the merged value of two states of the same name."""
    if reduction is mean_of_rows:
        return ((updates - 1) * first + second).float() / max(updates, 1)
    if reduction is concatenate:
        both = (first, second)
        if any(isinstance(state, Tensor) for state in both):
            return concatenate([concatenate(state) for state in both if isinstance(state, Tensor) or state])
        return first + second
    if isinstance(first, list):
        return first + second if reduction is None else reduction(first + second)
    stacked = torch.stack((first, second))
    return stacked if reduction is None else reduction(stacked)


def reduce(metric: DeclaringMetric, group: Any = None, gather: Callable[..., Any] | None = None) -> States:
    """Return the declared states reduced over the processes of `group`.

    Sums, means and extremes share one collective for each kind. All others share one gather, for which the
    host waits because shapes are exchanged first. If given, ``gather(tensor, group=group)`` is called for
    each tensor instead.
    """
    states: States = {name: getattr(metric, name) for name in metric._own_reductions}
    if not states:
        return {}
    if gather is not None:
        gathered = {name: gather_with(gather, value, group) for name, value in states.items()}
        return {
            name: reduce_gathered(metric._own_reductions[name], states[name], gathered[name])
            for name in states
        }
    group = distributed.process_group_of(group)
    ranks = dist.get_world_size(group)
    flat = [
        name
        for name, value in states.items()
        if metric._own_reductions[name] in COLLECTIVE_NAMES
        and isinstance(value, Tensor)
        and value.dtype != torch.bool
    ]
    reduced = all_reduce_flat(states, metric._own_reductions, flat, group, ranks)
    rest = [name for name in states if name not in reduced]
    if rest:
        lists = [list(states[n]) if isinstance(states[n], list) else [states[n]] for n in rest]
        by_rank = distributed.gather_tensor_lists(lists, metric.device, group)
        for name, tensors in zip(rest, by_rank, strict=True):
            reduced[name] = reduce_gathered(metric._own_reductions[name], states[name], tensors)
    return reduced


def all_reduce_flat(
    states: States, reductions: Mapping[str, Any], names: Sequence[str], group: Any, ranks: int
) -> States:
    """Return the states in `names` reduced over all processes, one collective for each kind of reduction."""
    reduced: States = {}
    carrier = distributed.carrier_device(group)
    for kind, operation in distributed.OPERATIONS.items():
        chosen = [name for name in names if COLLECTIVE_NAMES[reductions[name]] == kind]
        if not chosen:
            continue
        parts = [states[name].detach() for name in chosen]
        sent = move_to_device(distributed.flatten(parts), carrier or parts[0].device)
        dist.all_reduce(sent, op=operation, group=group)
        for name, part, piece in zip(
            chosen, parts, distributed.split(move_to_device(sent, parts[0].device), parts), strict=True
        ):
            reduced[name] = piece / ranks if reductions[name] is mean_of_rows else piece.to(part.dtype)
    return reduced


def gather_with(gather: Callable[..., Any], value: Any, group: Any) -> list[list[Tensor]]:
    """Gather the tensors of a state with `gather`: a list of tensors for every process."""
    tensors = value if isinstance(value, list) else [value]
    by_tensor = [list(gather(tensor, group=group)) for tensor in tensors]
    return [list(of_rank) for of_rank in zip(*by_tensor, strict=True)]


def reduce_gathered(reduction: ReduceFunction | None, own: Any, gathered: Sequence[Sequence[Tensor]]) -> Any:
    """Reduce the tensors that every process has of a state."""
    if isinstance(own, list):
        tensors: Any = [tensor for of_rank in gathered for tensor in of_rank]
        if not tensors:
            return torch.zeros(0) if reduction is concatenate else []
    elif reduction is concatenate:
        tensors = [tensor for of_rank in gathered for tensor in of_rank]
    else:
        tensors = torch.stack([of_rank[0] for of_rank in gathered])
    return tensors if reduction is None else reduction(tensors)
