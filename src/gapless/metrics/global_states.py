"""Swap metrics' local states for those reduced over all processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.distributed import StateReduction, reduce_with
from gapless.metrics.statistic import State, Statistic, swap_states


class ReducibleMetric(Protocol):
    """The attributes of a metric that reducing its states needs."""

    process_group: Any
    dist_sync_fn: Any

    def all_statistics(self) -> list[Statistic]: ...

    def _declaring_metrics(self) -> Sequence[declared.DeclaringMetric]: ...


class SwappedStates:
    """States of all processes in place of the local ones, until :meth:`release`.

    `elsewhere` counts the bad values that other processes met, where they are errors.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Statistic, State]],
        holders: Sequence[tuple[declared.DeclaringMetric, declared.States]],
        elsewhere: Mapping[Statistic, Tensor],
    ) -> None:
        self._parts = [part for part, _ in parts]
        self._before = swap_states(self._parts, [state for _, state in parts])
        self.elsewhere = elsewhere
        self._local = [(holder, declared.swap_states(holder, states)) for holder, states in holders]

    def release(self, note: bool = True) -> None:
        """Put the local states back; with `note`, statistics keep other processes' bad-value counts
        to report.
        """
        swap_states(self._parts, self._before)
        for holder, states in self._local:
            declared.swap_states(holder, states)
        if note:
            for part, count in self.elsewhere.items():
                part.errors_elsewhere = count

    def __enter__(self) -> SwappedStates:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class GlobalStates:
    """The states of several metrics over their processes: one reduction for each process group.

    With `async_op` nothing waits for the other processes before :meth:`swap_in`, except for states that
    classes written for TorchMetrics declare, which are reduced at once. `group` and `gather` replace those of
    the metrics.
    """

    def __init__(
        self,
        members: Sequence[ReducibleMetric],
        async_op: bool = False,
        group: Any = None,
        gather: Any = None,
    ) -> None:
        by_group: dict[Any, dict[int, Statistic]] = {}
        holders: dict[int, tuple[declared.DeclaringMetric, Any]] = {}
        for member in members:
            group_and_gather = (group or member.process_group, gather or member.dist_sync_fn)
            by_group.setdefault(group_and_gather, {}).update(
                (id(part), part) for part in member.all_statistics()
            )
            holders.update((id(metric), (metric, group_and_gather)) for metric in member._declaring_metrics())
        # Members may stop sharing statistics before the reduction completes; their states stay the same.
        self._members = [(member, [id(part) for part in member.all_statistics()]) for member in members]
        self._reductions = [
            (list(parts), start_reduction(list(parts.values()), async_op, *group_and_gather))
            for group_and_gather, parts in by_group.items()
            if parts
        ]
        self._declared = [
            (metric, declared.reduce(metric, *group_and_gather))
            for metric, group_and_gather in holders.values()
        ]

    def ready(self) -> bool:
        """Whether all reductions have completed; does not wait."""
        return all(reduction.ready() for _, reduction in self._reductions)

    def swap_in(self) -> SwappedStates:
        """Put the states of all processes into the members until the returned object is released."""
        states = {
            key: state
            for keys, reduction in self._reductions
            for key, state in zip(keys, reduction.states(), strict=True)
        }
        places = {
            id(part): (part, states[key])
            for member, keys in self._members
            for part, key in zip(member.all_statistics(), keys, strict=True)
        }
        counts = {id(part): n for _, reduction in self._reductions for part, n in reduction.elsewhere.items()}
        elsewhere = {
            part: counts[key]
            for member, keys in self._members
            for part, key in zip(member.all_statistics(), keys, strict=True)
            if key in counts
        }
        return SwappedStates(list(places.values()), self._declared, elsewhere)


class GatheredStates:
    """States that a user's function has gathered, with the interface of `StateReduction`."""

    def __init__(self, states: list[State]) -> None:
        self._states = states
        self.elsewhere: dict[Statistic, Tensor] = {}

    def ready(self) -> bool:
        return True

    def states(self) -> list[State]:
        return self._states


def start_reduction(
    parts: list[Statistic], async_op: bool, group: Any, gather: Callable[..., Any] | None
) -> StateReduction | GatheredStates:
    """Start reducing the states of `parts` over `group`, or gather them with `gather` if given."""
    if gather is None:
        return StateReduction(parts, group, async_op)
    return GatheredStates([reduce_with(gather, part, group) for part in parts])
