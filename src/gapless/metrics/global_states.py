"""Metrics' global states, reduced over all processes, in the place of the local ones for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from gapless.metrics import declared
from gapless.metrics.distributed import Reduction, by_function
from gapless.metrics.statistic import State, Statistic, swap


class Member(Protocol):
    """A metric, as far as its states over all processes need it."""

    _parts: list[Statistic]
    process_group: Any
    dist_sync_fn: Any

    def _holders(self) -> Sequence[declared.Holder]: ...


class Held:
    """States of all processes in the place of the local ones, which :meth:`release` puts back.

    `elsewhere` counts the bad values that other processes met, where they are errors.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Statistic, State]],
        holders: Sequence[tuple[declared.Holder, declared.States]],
        elsewhere: Mapping[Statistic, Tensor],
    ) -> None:
        self._parts = [part for part, _ in parts]
        self._before = swap(self._parts, [state for _, state in parts])
        self.elsewhere = elsewhere
        self._local = [(holder, declared.put(holder, found)) for holder, found in holders]

    def release(self, note: bool = True) -> None:
        """Put the local states back; with `note`, statistics keep what other processes met, to tell of it."""
        swap(self._parts, self._before)
        for holder, found in self._local:
            declared.put(holder, found)
        if note:
            for part, count in self.elsewhere.items():
                part.errors_elsewhere = count

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class GlobalStates:
    """The states of several metrics over their processes: one reduction for each group of processes.

    With `async_op` nothing waits for the other processes before :meth:`held`, except for states that classes
    written for TorchMetrics declare, which are reduced at once. `group` and `gather` stand for those of the
    metrics.
    """

    def __init__(
        self, members: Sequence[Member], async_op: bool = False, group: Any = None, gather: Any = None
    ) -> None:
        by_group: dict[Any, dict[int, Statistic]] = {}
        holders: dict[int, tuple[declared.Holder, Any]] = {}
        for member in members:
            way = (group or member.process_group, gather or member.dist_sync_fn)
            by_group.setdefault(way, {}).update((id(part), part) for part in member._parts)
            holders.update((id(one), (one, way)) for one in member._holders())
        # Members may stop sharing statistics before the processes have answered; their states stay the same.
        self._members = [(member, [id(part) for part in member._parts]) for member in members]
        self._reductions = [
            (list(parts), on_the_way(list(parts.values()), async_op, *way))
            for way, parts in by_group.items()
            if parts
        ]
        self._declared = [(one, declared.reduce(one, *way)) for one, way in holders.values()]

    def ready(self) -> bool:
        """Whether the processes have answered; does not wait."""
        return all(reduction.ready() for _, reduction in self._reductions)

    def held(self) -> Held:
        """The members hold the states of all processes from here on, once, until they are released: at the
        end of a ``with`` block, for one.
        """
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
        counts = {id(part): n for _, reduction in self._reductions for part, n in reduction.elsewhere.items()}
        elsewhere = {
            part: counts[key]
            for member, keys in self._members
            for part, key in zip(member._parts, keys, strict=True)
            if key in counts
        }
        return Held(list(places.values()), self._declared, elsewhere)


class Gathered:
    """States that a function has gathered."""

    def __init__(self, states: list[State]) -> None:
        self._states = states
        self.elsewhere: dict[Statistic, Tensor] = {}

    def ready(self) -> bool:
        return True

    def states(self) -> list[State]:
        return self._states


def on_the_way(
    parts: list[Statistic], async_op: bool, group: Any, gather: Callable[..., Any] | None
) -> Reduction | Gathered:
    """The states of `parts` on their way through the processes of `group`, by `gather` where there is one."""
    if gather is None:
        return Reduction(parts, group, async_op)
    return Gathered([by_function(gather, part, group) for part in parts])
