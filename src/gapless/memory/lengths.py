"""Fit how a run's requests depend on batch length, and build the run for other lengths.

Training steps request the same things in the same order, in sizes that depend on the length of the batch. If
the recorded steps confirm that, each size is a polynomial of the length of degree two or less.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun

_MIN_LENGTHS = 5
"""Different lengths needed: a parabola through three of them fits anything."""
_MIN_SHARE_ALIKE = 0.8
"""The share of the steady steps that must request the same things."""
_MAX_RELATIVE_ERROR = 0.01
"""Largest error of a size that fits; sizes below `_MAX_ERROR_BYTES` may be off by as much."""
_MAX_ERROR_BYTES = 1024
"""Two of the allocator's smallest blocks: it rounds small sizes by as much."""
_MAX_SHARE_UNFITTED = 0.02
"""The share of the bytes whose sizes need not depend on length; those keep the recorded size."""
_WARM_UP_STEPS = 2
"""First steps that differ from the others: gradients and optimizer state are created in them."""

Terms: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
PatternRow = tuple[int, int, int]
"""One event of a step: action; steps since the allocation and its number, or stream and 0."""


class NoLengthLaw(Exception):
    """Why the memory of this run cannot be predicted from batch lengths."""


class LengthLaw(NamedTuple):
    """The fitted run: `lengths` of the steps, events of a step (`rows`), coefficients of sizes (3 ×
    allocations).
    """

    run: MemoryRun
    lengths: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    rows: tuple[PatternRow, ...]
    places: tuple[int, ...]
    terms: Terms
    first: int
    odd: int

    def sizes(self, length: int) -> list[int]:
        """Return the bytes of each allocation of a step with a batch of `length`."""
        values = np.array([1.0, length, float(length) ** 2]) @ self.terms
        return [max(round(size), 1) for size in values]


def fit_lengths(run: MemoryRun) -> LengthLaw:
    """Fit allocation sizes of `run` to the lengths of its batches.

    Raises:
        NoLengthLaw: they do not depend on length in this way, and why.
    """
    bounds = _step_bounds(run)
    if len(bounds) < _WARM_UP_STEPS + _MIN_LENGTHS:
        raise NoLengthLaw(f"{len(bounds)} steps are too few to tell how memory depends on batch length")
    lengths = _batch_lengths(run, bounds)
    if len(set(lengths[_WARM_UP_STEPS:])) < _MIN_LENGTHS:
        raise NoLengthLaw(
            "all batches have the same length"
            if len(set(lengths)) == 1
            else f"batches of {len(set(lengths))} lengths are too few to tell how memory depends on length"
        )
    patterns = _step_patterns(run, bounds)
    rows, alike_count = Counter(patterns[_WARM_UP_STEPS:]).most_common(1)[0]
    steady = len(bounds) - _WARM_UP_STEPS
    alike = [at for at in range(_WARM_UP_STEPS, len(bounds)) if patterns[at] == rows]
    if alike_count < _MIN_SHARE_ALIKE * steady or len({lengths[at] for at in alike}) < _MIN_LENGTHS:
        raise NoLengthLaw(
            f"only {alike_count} of {steady} steady steps request the same things in the same order"
        )
    if any(ago > alike[0] for action, ago, _ in rows if action != ALLOC):
        raise NoLengthLaw("steps release memory that was requested long before")
    terms = _fit_terms(run, bounds, alike, lengths)
    places = tuple(run.place[row] for row in _alloc_rows(run, bounds[alike[0]]))
    return LengthLaw(run, lengths, bounds, rows, places, terms, alike[0], steady - alike_count)


def _step_bounds(run: MemoryRun) -> tuple[tuple[int, int], ...]:
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    return (
        tuple(zip([0, *(end + 1 for end in ends[:-1])], [end + 1 for end in ends], strict=True))
        if ends
        else ()
    )


def _batch_lengths(run: MemoryRun, bounds: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the one dimension of each step's batch that varies."""
    if not run.batches:
        raise NoLengthLaw("the lengths of the batches are not known")
    ends = [end for _, end in bounds]
    shapes: list[list[tuple[int, ...]]] = [[] for _ in bounds]
    for row, shape in run.batches:
        step = bisect_left(ends, row + 1)
        if step < len(shapes):
            shapes[step].append(shape)
    # What is copied before the first batch (a model) comes first in the first step.
    usual = Counter(tuple(map(len, step_shapes)) for step_shapes in shapes[1:]).most_common(1)
    ranks = usual[0][0] if usual else ()
    if not ranks:
        raise NoLengthLaw("no batch comes from the CPU in each step")
    shapes[0] = shapes[0][len(shapes[0]) - len(ranks) :]
    if any(tuple(map(len, step_shapes)) != ranks for step_shapes in shapes):
        raise NoLengthLaw("the steps have batches of different kinds")
    columns = list(zip(*([size for shape in step for size in shape] for step in shapes), strict=True))
    varying = {column for column in columns if len(set(column)) > 1}
    if len(varying) > 1:
        raise NoLengthLaw("more than one dimension of the batches varies")
    return next(iter(varying)) if varying else (1,) * len(bounds)


def _alloc_rows(run: MemoryRun, bound: tuple[int, int]) -> list[int]:
    return [at for at in range(*bound) if run.action[at] == ALLOC]


def _step_patterns(run: MemoryRun, bounds: Sequence[tuple[int, int]]) -> list[tuple[PatternRow, ...]]:
    """Return the events of each step with numbered allocations: equal for steps that differ in sizes only."""
    allocations: dict[int, tuple[int, int]] = {}
    patterns = []
    for step, (low, high) in enumerate(bounds):
        rows: list[PatternRow] = []
        count = 0
        for at in range(low, high):
            action, ident = run.action[at], run.ident[at]
            if action == ALLOC:
                allocations[ident] = (step, count)
                count += 1
                rows.append((ALLOC, run.stream[at], 0))
            elif action in (FREE, DEFER):
                of, number = allocations.get(ident, (-1, ident))
                rows.append((action, step - of, number))
            else:
                rows.append((action, 0, 0))
        patterns.append(tuple(rows))
    return patterns


def _fit_terms(
    run: MemoryRun, bounds: Sequence[tuple[int, int]], alike: Sequence[int], lengths: Sequence[int]
) -> Terms:
    """Fit coefficients of 1, length and length squared per allocation, with the lowest degree that fits."""
    sizes = np.array([[run.size[at] for at in _alloc_rows(run, bounds[step])] for step in alike], np.float64)
    x = np.array([lengths[step] for step in alike], np.float64)
    scale = x.max()
    powers = np.stack([np.ones_like(x), x / scale, (x / scale) ** 2], axis=1)
    terms = np.zeros((3, sizes.shape[1]))
    open_ = np.ones(sizes.shape[1], bool)
    allowed = np.maximum(_MAX_RELATIVE_ERROR * sizes, np.minimum(sizes, _MAX_ERROR_BYTES))
    for degree in range(3):
        coefficients, *_ = np.linalg.lstsq(powers[:, : degree + 1], sizes, rcond=None)
        fits = open_ & (np.abs(powers[:, : degree + 1] @ coefficients - sizes) <= allowed).all(axis=0)
        terms[: degree + 1, fits] = coefficients[:, fits]
        open_ &= ~fits
    poor = sizes[:, open_].sum() / max(sizes.sum(), 1)
    if poor > _MAX_SHARE_UNFITTED:
        raise NoLengthLaw(
            f"the sizes of {100 * poor:.0f} % of the bytes do not follow from the lengths of the batches"
        )
    terms[0, open_] = sizes[:, open_].max(axis=0)
    scaled: Terms = terms / np.array([[1.0], [scale], [scale**2]])
    return scaled


# The run again ------------------------------------------------------------------------------------


def with_lengths(law: LengthLaw, lengths: Sequence[int]) -> MemoryRun:
    """Return the run with batches of these `lengths`, one per step.

    The first steps, which create what persists, keep their recorded events; sizes in them that depend on
    length are changed. All other steps follow the fitted pattern.
    """
    run = law.run
    end = law.bounds[law.first][1]
    size = list(run.size[:end])
    by_place: defaultdict[int, list[int]] = defaultdict(list)
    for number, place_index in enumerate(law.places):
        by_place[place_index].append(number)
    for step in range(law.first + 1):
        then, now = law.sizes(law.lengths[step]), law.sizes(lengths[step])
        for at in _alloc_rows(run, law.bounds[step]):
            same = [
                index for index in by_place.get(run.place[at], ()) if _is_close(then[index], run.size[at])
            ]
            if same:
                size[at] = now[same[0]]
    action, ident = [*run.action[:end]], [*run.ident[:end]]
    stream, place = [*run.stream[:end]], [*run.place[:end]]
    before = law.bounds[: law.first + 1]
    idents = [[run.ident[at] for at in _alloc_rows(run, bound)] for bound in before]
    begun = (block.ident for segment in run.start for block in segment.blocks)
    following = max((*ident, *begun), default=-1) + 1
    for length in lengths[law.first + 1 :]:
        sizes = law.sizes(length)
        mine: list[int] = []
        idents.append(mine)
        for event, back, number in law.rows:
            action.append(event)
            if event == ALLOC:
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
            ident.append(idents[-1 - back][number] if event in (FREE, DEFER) else -1)
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


def _is_close(predicted: int, recorded: int) -> bool:
    return abs(predicted - recorded) <= max(
        _MAX_RELATIVE_ERROR * recorded, min(recorded, _MAX_ERROR_BYTES) / 2
    )
