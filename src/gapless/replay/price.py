"""What each group of waits costs: the profile replayed without it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from gapless.replay.change import NOTHING, Change, without
from gapless.replay.fidelity import Fidelity, fidelity
from gapless.replay.model import Model
from gapless.replay.path import Limiter, limiter
from gapless.trace.timeline import Bools

Removal = Literal["free", "deferrable", "shape"]
"""How a wait can go: ``free`` (a pinned copy, an explicit synchronize left out), ``deferrable`` (a value for
a log: read later), ``shape`` (the host needs the value to go on: only code that does not ask removes it, and
nothing promises that it can be written)."""

ENOUGH = 0.9
"""The share of what all fixes save that the shortest list must reach."""
LISTED = 64
"""Of a longer list of fixes nothing is left out one by one: a replay for each would take minutes."""
REPLAYED = 50_000_000
"""Moments of all replays under changes together: about half a second."""
LEAST_REPLAYED = 8
"""Groups that are replayed under changes, however many moments that takes."""
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
    do not come earlier). `shortest` is a short list of groups that saves at least nine tenths of `all`, in
    the order in which to remove them, and `saved` what has been saved after each. `limiter` is what limits
    the span now, `remains` what does once all groups are removed. The host is `blocked` in all groups for so
    long. Where `fidelity` is not trusted the prices are bounds.
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
    blocked: int = 0


@dataclass(frozen=True)
class Savings(Generic[K]):
    """What a changed machine has of `Prices`: its span, what goes with each group alone and last, and with
    all of them, what limits its span, and how long the host is blocked in all groups."""

    span: int
    alone: dict[K, int]
    last: dict[K, int]
    all: int
    limiter: Limiter
    blocked: int = 0


def savings(model: Model, groups: Mapping[K, Collection[int]], change: Change) -> Savings[K]:
    """What removing each group saves where `change` holds already: two replays that differ in the group
    alone."""
    return savings_of(model, groups, [change])[0]


def savings_of(
    model: Model,
    groups: Mapping[K, Collection[int]],
    changes: Sequence[Change],
    likely: Mapping[K, Price] | None = None,
) -> list[Savings[K]]:
    """:func:`savings` for each of `changes`, all replays together.

    Where they are more than `REPLAYED`, only the dearest groups by their `likely` prices are replayed; what
    the others save changes as what these save.
    """
    marked = {key: model.marked(rows) for key, rows in groups.items()}
    most = max(LEAST_REPLAYED, REPLAYED // (2 * len(model.program.a) * len(changes)))
    dearest = list(marked)
    every = _union(marked.values(), model)
    if likely is not None and len(marked) > most:
        dearest = sorted(marked, key=lambda key: (likely[key].last, likely[key].alone), reverse=True)[:most]
    sets = _sets(marked, dearest, model)
    distinct = {one.tobytes(): one for one in sets}
    positions = {key: at for at, key in enumerate(distinct)}
    found = []
    for spans, now in model.changed(changes, list(distinct.values())):
        alone, last, whole = _saved(dearest, [spans[positions[one.tobytes()]] for one in sets])
        if likely is not None and len(dearest) < len(marked):
            alone, last = _scaled(likely, alone, last)
        blocked = int(now.blocked[every].sum())
        found.append(Savings(now.span, alone, last, whole, limiter(now), blocked))
    return found


def _scaled(
    likely: Mapping[K, Price], alone: Mapping[K, int], last: Mapping[K, int]
) -> tuple[dict[K, int], dict[K, int]]:
    """What every group saves alone and last: as in `alone` and `last`, or else in proportion."""
    before = sum(likely[key].alone for key in alone), sum(likely[key].last for key in last)
    more = sum(alone.values()) / (before[0] or 1), sum(last.values()) / (before[1] or 1)
    return (
        {key: alone[key] if key in alone else round(price.alone * more[0]) for key, price in likely.items()},
        {key: last[key] if key in last else round(price.last * more[1]) for key, price in likely.items()},
    )


def _sets(groups: Mapping[K, Bools], some: Sequence[K], model: Model) -> list[Bools]:
    """The sets of waits whose spans tell what `some` groups save: none, all, each group, all but each."""
    every = _union(groups.values(), model)
    shared = np.sum(list(groups.values()), axis=0) > 1 if groups else every
    # What is in two groups is gone already when either is removed last.
    rest = [every & ~(groups[key] & ~shared) for key in some]
    return [every & False, every, *(groups[key] for key in some), *rest]


def _saved(keys: Sequence[K], spans: Sequence[int]) -> tuple[dict[K, int], dict[K, int], int]:
    """What each group saves alone, what it saves last, and what all save together: `spans` are of `_sets`."""
    none, least, *rest = spans
    alone = {key: none - span for key, span in zip(keys, rest[: len(keys)], strict=True)}
    last = {key: span - least for key, span in zip(keys, rest[len(keys) :], strict=True)}
    return alone, last, none - least


def prices(
    model: Model, groups: Mapping[K, Collection[int]], removal: Mapping[K, Removal] | None = None
) -> Prices[K]:
    """Prices every group: a key, and the host rows of its waits (other rows are passed over)."""
    marked = {key: model.marked(rows) for key, rows in groups.items()}
    every = _union(marked.values(), model)
    now = model.replay()
    after = model.replay(without(model.waits.host[every].tolist()))
    spans = _Spans(model, NOTHING)
    alone, last, whole = spans.prices(marked)
    least_alone, least_last, least_all = alone, last, whole
    if len(model.graph.collectives):
        least_alone, least_last, least_all = _Spans(model, Change(collectives="end")).prices(marked)
    each = {}
    for key, group in marked.items():
        kept = int((model.meant(groups[key]) & ~group).sum())
        each[key] = Price(
            alone[key], last[key], int(now.blocked[group].sum()), min(alone[key], least_alone[key]),
            min(last[key], least_last[key]), int(group.sum()), kept, removal.get(key) if removal else None,
        )  # fmt: skip
    shortest, saved = _shortest(spans, marked, each, whole)
    return Prices(
        now.span, each, whole, min(least_all, whole), shortest, saved, limiter(now),
        limiter(after), fidelity(model, now), int(now.blocked[every].sum()),
    )  # fmt: skip


def _union(sets: Iterable[Bools], model: Model) -> Bools:
    union = np.zeros(len(model.waits), bool)
    for one in sets:
        union |= one
    return union


class _Spans:
    """Spans of replays without sets of waits, each computed once."""

    def __init__(self, model: Model, change: Change) -> None:
        self._model = model
        self._run = model.spans(change)
        self._known: dict[bytes, int] = {}

    def of(self, sets: list[Bools]) -> list[int]:
        """The span without each of these sets of waits."""
        new = {one.tobytes(): one for one in sets if one.tobytes() not in self._known}
        self._known.update(zip(new, self._run(list(new.values())), strict=True))
        return [self._known[one.tobytes()] for one in sets]

    def saved(self, sets: Iterable[Bools]) -> int:
        """What removing all of these sets saves."""
        with_all, rest = self.of([np.zeros(len(self._model.waits), bool), _union(sets, self._model)])
        return with_all - rest

    def saved_after(self, sets: Sequence[Bools]) -> list[int]:
        """What has been saved after each of these sets has been removed, one after the other."""
        none, *gone = itertools.accumulate(
            sets, np.logical_or, initial=np.zeros(len(self._model.waits), bool)
        )
        first, *spans = self.of([none, *gone])
        return [first - span for span in spans]

    def prices(self, groups: Mapping[K, Bools]) -> tuple[dict[K, int], dict[K, int], int]:
        """What each group saves alone, what it saves last, and what all save together."""
        return _saved(list(groups), self.of(_sets(groups, list(groups), self._model)))


def _shortest(
    spans: _Spans, groups: Mapping[K, Bools], each: Mapping[K, Price], whole: int
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """A short list of groups that saves enough, by leaving out what is missed least."""
    if whole <= 0:
        return (), ()

    def saved(keys: Iterable[K]) -> int:
        return spans.saved(groups[key] for key in keys)

    candidates = sorted(groups, key=lambda key: (each[key].last, each[key].alone, each[key].blocked))
    low, high = 0, len(candidates) - 1  # how many of the least missed can go: more never save more
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if saved(candidates[middle:]) >= ENOUGH * whole else (low, middle - 1)
    kept = candidates[low:]
    for key in list(kept) if len(kept) <= LISTED else ():
        rest = [other for other in kept if other != key]
        if rest and saved(rest) >= ENOUGH * whole:
            kept = rest
    return _ordered(kept, each, saved, lambda order: spans.saved_after([groups[key] for key in order]))


def _ordered(
    kept: list[K],
    each: Mapping[K, Price],
    saved: Callable[[Iterable[K]], int],
    after: Callable[[Sequence[K]], list[int]],
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """These groups, the one that saves most with those before it first; and what is saved after each."""
    order: list[K] = []
    left = sorted(kept, key=lambda key: (-each[key].last, -each[key].alone))
    while left:
        best = left[0] if len(kept) > ORDERED else max(left, key=lambda key: saved([*order, key]))
        order.append(best)
        left.remove(best)
    return tuple(order), tuple(after(order))
