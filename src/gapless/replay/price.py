"""What each group of waits costs: the profile replayed without it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from gapless.replay.change import NOTHING, Change, without
from gapless.replay.fidelity import Fidelity, fidelity
from gapless.replay.model import Model
from gapless.replay.path import Limiter

Removal = Literal["free", "deferrable", "shape"]
"""How a wait can go: ``free`` (a pinned copy, an explicit synchronize left out), ``deferrable`` (a value for a
log: read later), ``shape`` (the host needs the value to go on: only code that does not ask removes it, and
nothing promises that it can be written)."""

ENOUGH = 0.9
"""The share of what all fixes save that the shortest list must reach."""
ORDERED = 12
"""Lists longer than this are ordered by `last` instead of one by one."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Price:
    """What removing a group of waits saves, in nanoseconds of the profile's span.

    `alone` when nothing else changes, `last` when all other groups have been removed already: a group's part
    in any order lies between nothing and what is blocked in it. `blocked` is the host's time in the group in
    the unchanged replay, and never less than `alone`. `least_alone` and `least_last` hold if the peers of a
    collective do not come earlier as well (equal to the others where there are no collectives). `waits`
    counts the waits removed, `kept` those that cannot be: work from before the profile, the synchronize of
    the profiler itself.
    """

    alone: int
    last: int
    blocked: int
    least_alone: int
    least_last: int
    waits: int
    kept: int
    removal: Removal | None = None


@dataclass(frozen=True)
class Prices(Generic[K]):
    """The prices of groups of waits. They are never to be added up: waits stand in for one another.

    `span` is the unchanged replay's; `all` is what removing every group saves together (`least_all` if peers
    do not come earlier). `shortest` is a short list of groups that saves at least nine tenths of `all`, in the
    order in which to remove them, and `saved` what has been saved after each. `limiter` is what takes most
    of the time now, `remains` what does once all groups are removed. Where `fidelity` is not trusted the
    prices are bounds.
    """

    span: int
    each: dict[K, Price]
    all: int
    least_all: int
    shortest: tuple[K, ...]
    saved: tuple[int, ...]
    limiter: Limiter
    remains: Limiter
    fidelity: Fidelity


def prices(
    model: Model, groups: Mapping[K, Collection[int]], removal: Mapping[K, Removal] | None = None
) -> Prices[K]:
    """Prices every group: a key, and the host rows of its waits (other rows are passed over)."""
    rows = {key: frozenset(int(row) for row in group) for key, group in groups.items()}
    every = frozenset[int]().union(*rows.values())
    now = model.replay()
    after = model.replay(without(every))
    spans = _Spans(model, NOTHING)
    alone, last = spans.alone(rows, every), spans.last(rows, every)
    least_alone, least_last, least_all = alone, last, now.span - after.span
    if len(model.graph.collectives):
        held = _Spans(model, Change(collectives="end"))
        least_alone, least_last = held.alone(rows, every), held.last(rows, every)
        least_all = held.none - held.without(every)
    each = {}
    for key, group in rows.items():
        marked = model.marked(group)
        meant = np.isin(model.waits.host, list(group)) | np.isin(model.waits.sync, list(group))
        each[key] = Price(
            alone[key], last[key], int(now.blocked[marked].sum()), min(alone[key], least_alone[key]),
            min(last[key], least_last[key]), int(marked.sum()), int((meant & ~marked).sum()),
            removal.get(key) if removal else None,
        )  # fmt: skip
    shortest, saved = _shortest(spans, rows, each, every)
    return Prices(
        now.span, each, now.span - after.span, min(least_all, now.span - after.span), shortest, saved,
        now.path.limiter, after.path.limiter, fidelity(model, now),
    )  # fmt: skip


class _Spans:
    """Spans of replays without sets of waits, each computed once."""

    def __init__(self, model: Model, change: Change) -> None:
        self._runner = model.runner(change)
        self._known: dict[frozenset[int], int] = {}
        self.none = self.without(frozenset())

    def without(self, rows: Iterable[int]) -> int:
        rows = frozenset(rows)
        if rows not in self._known:
            self._known[rows] = self._runner(rows)
        return self._known[rows]

    def alone(self, rows: Mapping[K, frozenset[int]], every: frozenset[int]) -> dict[K, int]:
        return {key: self.none - self.without(group) for key, group in rows.items()}

    def last(self, rows: Mapping[K, frozenset[int]], every: frozenset[int]) -> dict[K, int]:
        least = self.without(every)
        shared = _shared(rows.values())
        return {key: self.without(every - (group - shared)) - least for key, group in rows.items()}


def _shared(groups: Iterable[frozenset[int]]) -> frozenset[int]:
    """The rows in more than one group: without the others they are gone already."""
    seen: set[int] = set()
    twice: set[int] = set()
    for group in groups:
        twice |= seen & group
        seen |= group
    return frozenset(twice)


def _shortest(
    spans: _Spans, rows: Mapping[K, frozenset[int]], each: Mapping[K, Price], every: frozenset[int]
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """A short list of groups that saves enough, by leaving out what is missed least."""
    whole = spans.none - spans.without(every)
    if whole <= 0:
        return (), ()

    def saved(keys: Iterable[K]) -> int:
        return spans.none - spans.without(frozenset[int]().union(*(rows[key] for key in keys)))

    candidates = sorted(rows, key=lambda key: (each[key].last, each[key].alone, each[key].blocked))
    low, high = 0, len(candidates) - 1  # how many of the least missed can go: more never save more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if saved(candidates[middle:]) >= ENOUGH * whole else (low, middle - 1)
    kept = candidates[low:]
    for key in list(kept):
        rest = [other for other in kept if other != key]
        if rest and saved(rest) >= ENOUGH * whole:
            kept = rest
    return _ordered(kept, each, saved)


def _ordered(
    kept: list[K], each: Mapping[K, Price], saved: Callable[[Iterable[K]], int]
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """These groups, the one that saves most with those before it first; and what is saved after each."""
    order: list[K] = []
    left = sorted(kept, key=lambda key: (-each[key].last, -each[key].alone))
    while left:
        best = left[0] if len(kept) > ORDERED else max(left, key=lambda key: saved([*order, key]))
        order.append(best)
        left.remove(best)
    return tuple(order), tuple(saved(order[: n + 1]) for n in range(len(order)))
