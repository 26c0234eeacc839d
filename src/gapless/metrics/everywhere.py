"""Metrics' states over all processes, put in the place of the local ones for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gapless.metrics.distributed import Reduction
from gapless.metrics.statistic import Statistic, swap

if TYPE_CHECKING:
    from gapless.metrics.metric import Metric


class Everywhere:
    """The states of several metrics over their processes: one reduction for each group of processes.

    With `async_op` nothing waits for the other processes before :meth:`held`.
    """

    def __init__(self, members: Sequence[Metric], async_op: bool = False) -> None:
        by_group: dict[Any, dict[int, Statistic]] = {}
        for member in members:
            found = by_group.setdefault(member.process_group, {})
            found.update((id(part), part) for part in member._parts)
        # Members may stop sharing statistics before the processes have answered; their states stay the same.
        self._members = [(member, [id(part) for part in member._parts]) for member in members]
        self._reductions = [
            (list(parts), Reduction(list(parts.values()), group, async_op))
            for group, parts in by_group.items()
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
        try:
            yield
        finally:
            swap(parts, before)
