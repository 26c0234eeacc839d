"""What a file itself says of events that are not in it: numbers left out, arrows that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gapless.trace.build import TWICE, Builder
from gapless.trace.timeline import HostKind, Ints, Timeline

_FEW = 50
"""Fewer operators without numbers of their own do not tell."""
_SOME = 0.99
"""Where more Python frames than this part are there none are missing: the profiler drops a few itself."""


class Numbered(NamedTuple):
    """How many events of the CPU are there, of how many, after how many; between which times some are not;
    and whether the profiler's first one is there and none after it was left out."""

    seen: int = 0
    of: int = 0
    before: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    dense: bool = False


def numbered(builder: Builder, made: Timeline, earliest: int) -> Numbered:
    """What the profiler's numbers for events of the CPU say; `earliest` is the first event's time.

    ``Ev Idx`` counts operators and annotations without gaps, in some versions with records of memory among
    them, and Python frames behind them: by thread, then time. Files up to torch 1.11 have only the operators'
    ``External id``, of which some are skipped where nothing was recorded for a while: the longest gap does
    not count.
    """
    alone, memory = builder.numbers.all(), builder.memory_numbers.all()
    if len(alone[0]):
        counts = [_dense([alone], earliest), _dense([alone, memory], earliest)]
        best = max(counts, key=lambda one: one.seen / one.of)
        return best if best.before else _with_frames(best, builder.frame_numbers.all()[0])
    host = made.host
    rows = np.isin(host.kind, (HostKind.OPERATOR, HostKind.ANNOTATION)) & (host.external > 0)
    found = np.unique(host.external[rows])
    if len(found) < _FEW:
        return Numbered()
    gaps = np.diff(found) - 1
    return Numbered(len(found), len(found) + int(gaps.sum() - gaps.max()))


def _dense(some: Sequence[tuple[Ints, Ints]], earliest: int) -> Numbered:
    """What numbers say that should be all there are."""
    numbers, first = np.unique(np.concatenate([one for one, _ in some]), return_index=True)
    start = np.concatenate([one for _, one in some])[first] - earliest
    # They begin at 0, except in parts that were taken out of larger profiles.
    begin = int(numbers[0]) if numbers[0] > len(numbers) else 0
    gone = np.flatnonzero((np.diff(numbers) > 1) & (np.diff(start) > 0))
    gaps = tuple(zip(start[gone].tolist(), start[gone + 1].tolist(), strict=True))
    of = int(numbers[-1]) - begin + 1
    return Numbered(len(numbers), of, begin, gaps, dense=not begin and len(numbers) == of)


def _with_frames(found: Numbered, frames: Ints) -> Numbered:
    """With the Python frames, whose numbers follow all others' after an unknown distance."""
    if not len(frames):
        return found
    of = int(frames[-1] - frames[0]) + 1
    if len(frames) > _SOME * of:
        return found
    return found._replace(seen=found.seen + len(frames), of=found.of + of)


def arrows(builder: Builder, made: Timeline) -> int:
    """How many arrows lead from calls to work of a device that is not there."""
    ends = builder.arrows.beside({(one.pid, one.tid) for one in made.threads})
    if not len(ends) or builder.dropped[TWICE]:  # of arrows there is no telling which are there twice
        return 0
    wanted, counts = np.unique(ends, return_counts=True)
    for there in (made.work.correlation, made.syncs.correlation):
        known, held = np.unique(there, return_counts=True)
        at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        counts = counts - np.where(known[at] == wanted, held[at], 0) if len(known) else counts
    return int(np.maximum(counts, 0).sum())
