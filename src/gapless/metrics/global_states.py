"""Metrics' global states, reduced over all processes, in the place of the local ones for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gapless.metrics import declared
from gapless.metrics.distributed import Reduction, gathered_by
from gapless.metrics.stateful import Stateful
from gapless.metrics.statistic import State, Statistic, swap


class GlobalStates:
    """The states of several metrics over their processes: one reduction for each group of processes.

    With `async_op` nothing waits for the other processes before :meth:`held`, except for states that classes
    written for TorchMetrics declare, which are reduced at once.
    """

    def __init__(self, members: Sequence[Stateful], async_op: bool = False) -> None:
        by_group: dict[Any, dict[int, Statistic]] = {}
        for member in members:
            found = by_group.setdefault((member.process_group, member.dist_sync_fn), {})
            found.update((id(part), part) for part in member._parts)
        # Members may stop sharing statistics before the processes have answered; their states stay the same.
        self._members = [(member, [id(part) for part in member._parts]) for member in members]
        self._reductions = [
            (list(parts), on_the_way(list(parts.values()), group, gather, async_op))
            for (group, gather), parts in by_group.items()
            if parts
        ]
        holders = {id(one): (one, member) for member in members for one in member._holders()}
        self._declared = [
            (one, declared.reduce(one, member.process_group, member.dist_sync_fn))
            for one, member in holders.values()
        ]

    def ready(self) -> bool:
        """Whether the processes have answered; does not wait."""
        return all(reduction.ready() for _, reduction in self._reductions)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The members hold the states of all processes inside the block, once, and their own after it."""
        states = {
            key: state
            for keys, reduction in self._reductions
            for key, state in zip(keys, reduction.states(), strict=True)
        }
        places = {
            id(part): (part, states[key])
            for member, keys in self._members
            for part, key in zip(member._parts, keys, strict=True)
        }
        parts = [part for part, _ in places.values()]
        before = swap(parts, [state for _, state in places.values()])
        local = [(holder, declared.put(holder, found)) for holder, found in self._declared]
        try:
            yield
        finally:
            swap(parts, before)
            for holder, found in local:
                declared.put(holder, found)


class Gathered:
    """States that a function has gathered."""

    def __init__(self, states: list[State]) -> None:
        self._states = states

    def ready(self) -> bool:
        return True

    def states(self) -> list[State]:
        return self._states


def on_the_way(parts: list[Statistic], group: Any, gather: Any, async_op: bool) -> Reduction | Gathered:
    """The states of `parts` on their way through the processes of `group`, by `gather` where there is one."""
    if gather is None:
        return Reduction(parts, group, async_op)
    return Gathered(gathered_by(gather, parts, group))
