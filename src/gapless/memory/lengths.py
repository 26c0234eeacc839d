"""How a run's requests follow from the lengths of its batches, and the run with other lengths.

A step of training asks for the same things in the same order, in sizes that depend on how long its batch is.
Where the recorded steps bear that out, each request's size is a polynomial of the length, at most a square,
and the run can be made again for any lengths.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun

_DISTINCT = 5
"""Different lengths that must have been seen: a square through three of them fits anything."""
_ALIKE = 0.8
"""The share of the steady steps that must ask for the same things."""
_CLOSE = 0.01
"""Relative error of a size that fits; sizes below `_SMALL` bytes may be wrong by as much."""
_SMALL = 1024
_POOR = 0.02
"""The share of the bytes whose sizes may follow no law; those keep the size of the recorded step."""
_WARM_UP = 2

Terms: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
Row = tuple[int, int, int]
"""What happens, in a step of the pattern: action; steps ago and number of the allocation, or stream and 0."""


class Refused(Exception):
    """Why the lengths of this run say nothing of its memory."""


class Law(NamedTuple):
    """Lengths of the steps, what each does (`rows`), and sizes by length (`terms`: 3 × allocations)."""

    run: MemoryRun
    lengths: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    rows: tuple[Row, ...]
    places: tuple[int, ...]
    terms: Terms
    first: int
    odd: int

    def sizes(self, length: int) -> list[int]:
        """Bytes of each allocation of a step whose batch is that long."""
        found = np.array([1.0, length, float(length) ** 2]) @ self.terms
        return [max(round(one), 1) for one in found]


def law(run: MemoryRun) -> Law:
    """The law of `run`.

    Raises:
        Refused: there is none, and why.
    """
    bounds = _bounds(run)
    if len(bounds) < _WARM_UP + _DISTINCT:
        raise Refused(f"{len(bounds)} steps are too few to tell how memory depends on batch length")
    lengths = _lengths(run, bounds)
    if len(set(lengths[_WARM_UP:])) < _DISTINCT:
        raise Refused(
            "all batches have the same length"
            if len(set(lengths)) == 1
            else f"batches of {len(set(lengths))} lengths are too few to tell how memory depends on length"
        )
    patterns = _patterns(run, bounds)
    rows, seen = Counter(patterns[_WARM_UP:]).most_common(1)[0]
    steady = len(bounds) - _WARM_UP
    alike = [at for at in range(_WARM_UP, len(bounds)) if patterns[at] == rows]
    if seen < _ALIKE * steady or len({lengths[at] for at in alike}) < _DISTINCT:
        raise Refused(f"only {seen} of {steady} steady steps request the same things in the same order")
    if any(ago > alike[0] for action, ago, _ in rows if action != ALLOC):
        raise Refused("steps release memory that was requested long before")
    terms = _terms(run, bounds, alike, lengths)
    places = tuple(run.place[row] for row in _allocs(run, bounds[alike[0]]))
    return Law(run, lengths, bounds, rows, places, terms, alike[0], steady - seen)


def _bounds(run: MemoryRun) -> tuple[tuple[int, int], ...]:
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    return (
        tuple(zip([0, *(end + 1 for end in ends[:-1])], [end + 1 for end in ends], strict=True))
        if ends
        else ()
    )


def _lengths(run: MemoryRun, bounds: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The one size of each step's batch that varies."""
    if not run.batches:
        raise Refused("the lengths of the batches are not known")
    ends = [end for _, end in bounds]
    shapes: list[list[tuple[int, ...]]] = [[] for _ in bounds]
    for row, shape in run.batches:
        step = bisect_left(ends, row + 1)
        if step < len(shapes):
            shapes[step].append(shape)
    # What is moved before the first batch (a model) comes first in the first step.
    usual = Counter(tuple(map(len, one)) for one in shapes[1:]).most_common(1)
    ranks = usual[0][0] if usual else ()
    if not ranks:
        raise Refused("no batch comes from the CPU in each step")
    shapes[0] = shapes[0][len(shapes[0]) - len(ranks) :]
    if any(tuple(map(len, one)) != ranks for one in shapes):
        raise Refused("the steps have batches of different kinds")
    columns = list(zip(*([size for shape in step for size in shape] for step in shapes), strict=True))
    varying = {column for column in columns if len(set(column)) > 1}
    if len(varying) > 1:
        raise Refused("more than one dimension of the batches varies")
    return next(iter(varying)) if varying else (1,) * len(bounds)


def _allocs(run: MemoryRun, bound: tuple[int, int]) -> list[int]:
    return [at for at in range(*bound) if run.action[at] == ALLOC]


def _patterns(run: MemoryRun, bounds: Sequence[tuple[int, int]]) -> list[tuple[Row, ...]]:
    """What each step does, with allocations by number: the same for steps that differ in sizes alone."""
    made: dict[int, tuple[int, int]] = {}
    patterns = []
    for step, (low, high) in enumerate(bounds):
        rows: list[Row] = []
        count = 0
        for at in range(low, high):
            action, ident = run.action[at], run.ident[at]
            if action == ALLOC:
                made[ident] = (step, count)
                count += 1
                rows.append((ALLOC, run.stream[at], 0))
            elif action in (FREE, DEFER):
                of, number = made.get(ident, (-1, ident))
                rows.append((action, step - of, number))
            else:
                rows.append((action, 0, 0))
        patterns.append(tuple(rows))
    return patterns


def _terms(
    run: MemoryRun, bounds: Sequence[tuple[int, int]], alike: Sequence[int], lengths: Sequence[int]
) -> Terms:
    """Coefficients of 1, the length and its square for each allocation: as few as fit."""
    sizes = np.array([[run.size[at] for at in _allocs(run, bounds[step])] for step in alike], np.float64)
    x = np.array([lengths[step] for step in alike], np.float64)
    scale = x.max()
    powers = np.stack([np.ones_like(x), x / scale, (x / scale) ** 2], axis=1)
    terms = np.zeros((3, sizes.shape[1]))
    open_ = np.ones(sizes.shape[1], bool)
    allowed = np.maximum(_CLOSE * sizes, np.minimum(sizes, _SMALL))
    for degree in range(3):
        found, *_ = np.linalg.lstsq(powers[:, : degree + 1], sizes, rcond=None)
        fits = open_ & (np.abs(powers[:, : degree + 1] @ found - sizes) <= allowed).all(axis=0)
        terms[: degree + 1, fits] = found[:, fits]
        open_ &= ~fits
    poor = sizes[:, open_].sum() / max(sizes.sum(), 1)
    if poor > _POOR:
        raise Refused(
            f"the sizes of {100 * poor:.0f} % of the bytes do not follow from the lengths of the batches"
        )
    terms[0, open_] = sizes[:, open_].max(axis=0)
    scaled: Terms = terms / np.array([[1.0], [scale], [scale**2]])
    return scaled


# The run again ------------------------------------------------------------------------------------


def with_lengths(law: Law, lengths: Sequence[int]) -> MemoryRun:
    """The run as it would be with batches of these `lengths`, one for each of its steps.

    The first steps, which make what stays, do what was recorded; the sizes in them that the law knows change
    with the length. All others are as the law has them.
    """
    run = law.run
    end = law.bounds[law.first][1]
    size = list(run.size[:end])
    by_place: defaultdict[int, list[int]] = defaultdict(list)
    for number, known in enumerate(law.places):
        by_place[known].append(number)
    for step in range(law.first + 1):
        then, now = law.sizes(law.lengths[step]), law.sizes(lengths[step])
        for at in _allocs(run, law.bounds[step]):
            same = [one for one in by_place.get(run.place[at], ()) if _near(then[one], run.size[at])]
            if same:
                size[at] = now[same[0]]
    action, ident = [*run.action[:end]], [*run.ident[:end]]
    stream, place = [*run.stream[:end]], [*run.place[:end]]
    before = law.bounds[: law.first + 1]
    made = [[run.ident[at] for at in _allocs(run, bound)] for bound in before]
    begun = (block.ident for segment in run.start for block in segment.blocks)
    following = max((*ident, *begun), default=-1) + 1
    for length in lengths[law.first + 1 :]:
        sizes = law.sizes(length)
        mine: list[int] = []
        made.append(mine)
        for what, back, number in law.rows:
            action.append(what)
            if what == ALLOC:
                size.append(sizes[len(mine)])
                place.append(law.places[len(mine)])
                stream.append(back)
                ident.append(following)
                mine.append(following)
                following += 1
                continue
            size.append(0)
            place.append(-1)
            stream.append(0)
            ident.append(made[-1 - back][number] if what in (FREE, DEFER) else -1)
    return msgspec.structs.replace(
        run,
        action=tuple(action),
        ident=tuple(ident),
        size=tuple(size),
        stream=tuple(stream),
        place=tuple(place),
        time=(),
        address=(),
        pool=(),
        recorded=None,
    )


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= max(_CLOSE * other, min(other, _SMALL) / 2)
