"""Price groups of waits by replaying the profile without them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from gapless.replay.change import NO_CHANGE, ReplayChange, remove_waits
from gapless.replay.fidelity import ReplayFidelity, measure_fidelity
from gapless.replay.model import ReplayModel
from gapless.replay.path import Limiter, find_limiter
from gapless.trace.timeline import Bools

Removal = Literal["free", "deferrable", "shape"]
"""How a wait can be avoided: ``free`` (a pinned copy, an explicit synchronize left out), ``deferrable`` (a
value for a log: read it later), ``shape`` (the host needs the value to continue: only code that does not ask
for it avoids the wait, and such code may not exist).
"""

MIN_SHARE_OF_SAVING = 0.9
"""The share of the saving of all fixes that the shortest list must reach."""
MAX_FIXES_TO_PRUNE = 64
"""Longer lists of fixes are not pruned one by one: a replay for each would take minutes."""
MAX_MOMENTS_REPLAYED = 50_000_000
"""Moments of all replays under changes together: about half a second."""
MIN_GROUPS_REPLAYED = 8
"""Groups replayed under changes, however many moments that takes."""
MAX_FIXES_TO_ORDER = 12
"""Longer lists are left as they are ranked, instead of replaying each choice."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class GroupPrice:
    """What removing a group of waits saves, in nanoseconds of the profile's span.

    `alone` if nothing else changes, `last` if all other groups have been removed already: in any order a
    group saves between nothing and its blocked time with the time of what rides with it. `blocked` is the
    host's time in the group in the unchanged replay, and without riders at least `alone`. `least_alone` and
    `least_last` hold if the peers of a collective do not come earlier too (equal to the others without
    collectives). `waits` counts the waits removed, `kept` those that cannot be: for work from before the
    profile, or the profiler's own synchronize.
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
class GroupPrices(Generic[K]):
    """The prices of groups of waits. They must not be added up: waits can replace one another.

    `span` is the unchanged replay's; `all` is what removing every group saves together (`least_all` if peers
    do not come earlier). `shortest` is a short list of groups that saves at least nine tenths of `all`, in
    the order in which to remove them, and `saved` the total after each. `limiter` is what limits the span
    now, `remains` what does once all groups are removed. The host is `blocked` in all groups for so long. If
    `fidelity` is not trusted the prices are bounds. `unions` are the savings from removing unions of groups.
    """

    span: int
    each: dict[K, GroupPrice]
    all: int
    least_all: int
    shortest: tuple[K, ...]
    saved: tuple[int, ...]
    limiter: Limiter
    remains: Limiter
    fidelity: ReplayFidelity
    blocked: int = 0
    unions: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupSavings(Generic[K]):
    """`GroupPrices` under a change: span, saving of each group alone and last, saving of all, limiter, the
    host's blocked time in all groups, and the savings of unions of groups.
    """

    span: int
    alone: dict[K, int]
    last: dict[K, int]
    all: int
    limiter: Limiter
    blocked: int = 0
    unions: tuple[int, ...] = ()


@dataclass(frozen=True)
class SavingsBounds(Generic[K]):
    """Savings under each of some changes: the `least`, where the CPU launches what it did, and the `most`,
    where it launches nothing that may ride with the waits.
    """

    least: list[GroupSavings[K]]
    most: list[GroupSavings[K]]


def group_savings(
    model: ReplayModel, groups: Mapping[K, Collection[int]], change: ReplayChange
) -> GroupSavings[K]:
    """Return what removing each group saves under `change`: two replays that differ only in the group."""
    return group_savings_under(model, groups, [change])[0]


def group_savings_under(
    model: ReplayModel,
    groups: Mapping[K, Collection[int]],
    changes: Sequence[ReplayChange],
    likely: Mapping[K, GroupPrice] | None = None,
    unions: Sequence[Collection[K]] = (),
) -> list[GroupSavings[K]]:
    """Compute :func:`group_savings` for each of `changes`, running all replays together; also what removing
    the groups of each of `unions` saves.

    If these exceed `MAX_MOMENTS_REPLAYED`, only the dearest groups by their `likely` prices are replayed; the
    savings of the others are scaled like theirs.
    """
    return _savings_by_view(model, groups, changes, [model.marks.with_certain], likely, unions)[0]


def group_savings_between(
    model: ReplayModel,
    groups: Mapping[K, Collection[int]],
    changes: Sequence[ReplayChange],
    likely: Mapping[K, GroupPrice],
    unions: Sequence[Collection[K]] = (),
) -> SavingsBounds[K]:
    """Compute :func:`group_savings_under` twice: where the CPU launches what it did, and where all goes that
    may ride with the waits.
    """
    views = [model.marks.on_device, model.marks.with_possible]
    return SavingsBounds(*_savings_by_view(model, groups, changes, views, likely, unions))


def _savings_by_view(
    model: ReplayModel,
    groups: Mapping[K, Collection[int]],
    changes: Sequence[ReplayChange],
    views: Sequence[Callable[[Bools], Bools]],
    likely: Mapping[K, GroupPrice] | None,
    unions: Sequence[Collection[K]],
) -> list[list[GroupSavings[K]]]:
    """Return for each view, which says what goes with waits, the savings under each change."""
    marked = {key: model.marked(rows) for key, rows in groups.items()}
    moments = 2 * len(views) * len(model.program.a) * len(changes)
    most = max(MIN_GROUPS_REPLAYED, MAX_MOMENTS_REPLAYED // moments)
    dearest = list(marked)
    if likely is not None and len(marked) > most:
        dearest = sorted(marked, key=lambda key: (likely[key].last, likely[key].alone), reverse=True)[:most]
    usual = [*_removal_sets(marked, dearest, model), *_union_sets(marked, unions, model)]
    sets = [[view(marks) for marks in usual] for view in views]
    distinct = {marks.tobytes(): marks for of_view in sets for marks in of_view}
    positions = {key: at for at, key in enumerate(distinct)}
    every = model.marks.waits(_union(marked.values(), model))
    results: list[list[GroupSavings[K]]] = [[] for _ in views]
    for spans, now in model.changed(changes, list(distinct.values())):
        limiter, blocked = find_limiter(now), int(now.blocked[every].sum())
        for of_view, savings in zip(sets, results, strict=True):
            none, *rest = (spans[positions[marks.tobytes()]] for marks in of_view)
            split = len(rest) - len(unions)
            alone, last, whole = _savings_from_spans(dearest, [none, *rest[:split]])
            if likely is not None and len(dearest) < len(marked):
                alone, last = _scale_likely(likely, alone, last)
            together = tuple(none - span for span in rest[split:])
            savings.append(GroupSavings(now.span, alone, last, whole, limiter, blocked, together))
    return results


def _scale_likely(
    likely: Mapping[K, GroupPrice], alone: Mapping[K, int], last: Mapping[K, int]
) -> tuple[dict[K, int], dict[K, int]]:
    """Return savings of every group alone and last: those replayed, and the others in proportion."""
    before = sum(likely[key].alone for key in alone), sum(likely[key].last for key in last)
    more = sum(alone.values()) / (before[0] or 1), sum(last.values()) / (before[1] or 1)
    return (
        {key: alone[key] if key in alone else round(price.alone * more[0]) for key, price in likely.items()},
        {key: last[key] if key in last else round(price.last * more[1]) for key, price in likely.items()},
    )


def _removal_sets(groups: Mapping[K, Bools], some: Sequence[K], model: ReplayModel) -> list[Bools]:
    """Return the sets of waits whose spans give the savings of `some` groups: none, all, each, all but
    each.
    """
    every = _union(groups.values(), model)
    shared = np.sum(list(groups.values()), axis=0) > 1 if groups else every
    # waits of two groups are already gone when either group is removed last
    rest = [every & ~(groups[key] & ~shared) for key in some]
    return [every & False, every, *(groups[key] for key in some), *rest]


def _union_sets(
    groups: Mapping[K, Bools], unions: Sequence[Collection[K]], model: ReplayModel
) -> list[Bools]:
    """Return the waits of the groups of each of `unions`."""
    return [_union([groups[key] for key in keys], model) for keys in unions]


def _savings_from_spans(keys: Sequence[K], spans: Sequence[int]) -> tuple[dict[K, int], dict[K, int], int]:
    """Return what each group saves alone and last, and all together, from the `spans` of `_removal_sets`."""
    none, least, *rest = spans
    alone = {key: none - span for key, span in zip(keys, rest[: len(keys)], strict=True)}
    last = {key: span - least for key, span in zip(keys, rest[len(keys) :], strict=True)}
    return alone, last, none - least


def price_groups(
    model: ReplayModel,
    groups: Mapping[K, Collection[int]],
    removal: Mapping[K, Removal] | None = None,
    unions: Sequence[Collection[K]] = (),
) -> GroupPrices[K]:
    """Price every group: a key with the host rows of its waits (other rows are ignored); and the groups of
    each of `unions` together.
    """
    marked = {key: model.marked(rows) for key, rows in groups.items()}
    every = model.marks.waits(_union(marked.values(), model))
    now = model.replay()
    after = model.replay(remove_waits(model.waits.host[every].tolist()))
    spans = _CachedSpans(model, NO_CHANGE)
    alone, last, whole = spans.prices(marked)
    least_alone, least_last, least_all = alone, last, whole
    if len(model.graph.collectives):
        least_alone, least_last, least_all = _CachedSpans(model, ReplayChange(collectives="end")).prices(
            marked
        )
    each = {}
    for key, marks in marked.items():
        group = model.marks.waits(marks)
        kept = int((model.waits_of_rows(groups[key]) & ~group).sum())
        each[key] = GroupPrice(
            alone[key], last[key], int(now.blocked[group].sum()), min(alone[key], least_alone[key]),
            min(last[key], least_last[key]), int(group.sum()), kept, removal.get(key) if removal else None,
        )  # fmt: skip
    shortest, saved = _shorten(spans, marked, each, whole)
    together = tuple(spans.saved([marks]) for marks in _union_sets(marked, unions, model))
    return GroupPrices(
        now.span, each, whole, min(least_all, whole), shortest, saved, find_limiter(now),
        find_limiter(after), measure_fidelity(model, now), int(now.blocked[every].sum()), together,
    )  # fmt: skip


def _union(sets: Iterable[Bools], model: ReplayModel) -> Bools:
    union = model.marks.none()
    for marks in sets:
        union |= marks
    return union


class _CachedSpans:
    """Spans of replays without sets of waits, each computed once."""

    def __init__(self, model: ReplayModel, change: ReplayChange) -> None:
        self._model = model
        self._run = model.spans(change)
        self._known: dict[bytes, int] = {}

    def spans_without(self, sets: list[Bools]) -> list[int]:
        """Return the span without each of these sets of waits."""
        new = {marks.tobytes(): marks for marks in sets if marks.tobytes() not in self._known}
        self._known.update(zip(new, self._run(list(new.values())), strict=True))
        return [self._known[marks.tobytes()] for marks in sets]

    def saved(self, sets: Iterable[Bools]) -> int:
        """Return what removing all of these sets saves."""
        with_all, rest = self.spans_without([self._model.marks.none(), _union(sets, self._model)])
        return with_all - rest

    def saved_after(self, sets: Sequence[Bools]) -> list[int]:
        """Return the total saved after each of these sets has been removed, one after the other."""
        none, *gone = itertools.accumulate(sets, np.logical_or, initial=self._model.marks.none())
        first, *spans = self.spans_without([none, *gone])
        return [first - span for span in spans]

    def prices(self, groups: Mapping[K, Bools]) -> tuple[dict[K, int], dict[K, int], int]:
        """Return what each group saves alone and last, and all together."""
        return _savings_from_spans(
            list(groups), self.spans_without(_removal_sets(groups, list(groups), self._model))
        )


def _shorten(
    spans: _CachedSpans, groups: Mapping[K, Bools], each: Mapping[K, GroupPrice], whole: int
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """Return a short list of groups that saves enough, leaving out those missed least."""
    if whole <= 0:
        return (), ()

    def saving_of(keys: Iterable[K]) -> int:
        return spans.saved(groups[key] for key in keys)

    ranked = sorted(groups, key=lambda key: (-each[key].last, -each[key].alone, -each[key].blocked))
    # leaving out more of the least missed never saves more
    totals = spans.saved_after([groups[key] for key in ranked])
    enough = sum(total < MIN_SHARE_OF_SAVING * whole for total in totals)
    kept = ranked[: enough + 1]
    for key in kept[::-1] if len(kept) <= MAX_FIXES_TO_PRUNE else ():
        rest = [other for other in kept if other != key]
        if rest and saving_of(rest) >= MIN_SHARE_OF_SAVING * whole:
            kept = rest
    return _order_by_saving(kept, saving_of, lambda order: spans.saved_after([groups[key] for key in order]))


def _order_by_saving(
    kept: Sequence[K],
    saved: Callable[[Iterable[K]], int],
    after: Callable[[Sequence[K]], list[int]],
) -> tuple[tuple[K, ...], tuple[int, ...]]:
    """Order the groups, which are ranked, so that each saves most with those before it; also return the total
    after each."""
    order: list[K] = []
    left = list(kept)
    while left:
        best = left[0] if len(kept) > MAX_FIXES_TO_ORDER else max(left, key=lambda key: saved([*order, key]))
        order.append(best)
        left.remove(best)
    return tuple(order), tuple(after(order))
