"""Launches that are gone with all that would tell of them: the call, its work, and what ties both.

What shows it are the operators around them, if they are there: those that launch wherever else they run have
launched nothing. Where launches are gone **in one stretch**, the driver's numbers of calls, of which torch
records every fifth or so, go on behind it as if it were there. Neither is enough alone: the same operators
run on tensors of the CPU, and loading a library takes a thousand numbers. Where launches are gone **here and
there**, no operator is left that always launches; such ones do at least a quarter of a whole profile's
launches. Where the operators are gone as well, launches lie **outside** of the time in which there are any.

Of 106 whole public profiles none has any of these signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, distinct, percentile

_OFTEN = 0.5
"""An operator that launches in more than this part of its calls should have launched."""
_FEW = 3.0
"""Launches that are missing at least."""
_LEAST = 0.01
"""Part of the launches that a stretch holds: the driver's numbers jump by less where libraries are set up."""
_JUMP = 5
"""So many times as far as is usual is a jump of the driver's numbers."""
_USUAL = 75
"""Percentile of the steps from one recorded number to the next one that is usual."""
_SHARE, _KINDS = 0.05, 2
"""With a jump: operators for this part of the launches should have launched, or of so many names."""
_PARTS, _MANY_KINDS = (0.05, 0.25), 5
"""Without numbers: for these parts at the end and at the beginning, and of so many names; or ..."""
_MOST = 0.5
"""... for this part, and of the fewer names."""
_PROVEN = 0.1
"""Of the launches expected in a stretch operators did so much on the device, where nothing else tells."""
_ALWAYS = 0.95
"""What launches in more than this part of its calls always does, but for tensors without elements."""
_SURE = 0.25
"""Part of the launches that come from operators which always launch."""
_LAUNCHES = 20
"""Fewer launches do not tell what always launches."""
_BARE = 0.02
"""Part of the launches that may have no operator around them where there are operators."""
_APART = 0.5
"""What is missing by chance stands alone as often as chance has it, or half as often at least."""


class Holes(NamedTuple):
    """What is missing: about so many launches, in stretches that begin at these times."""

    lost: int
    start: Ints


class _Windows(NamedTuple):
    """Between launches, by how many came before: launches expected, operators' names, when they begin."""

    before: Ints
    expected: Floats
    kinds: Ints
    start: Ints


@dataclass(frozen=True)
class Launches:
    """These `calls`, by start, which launch, the `captured` ones into a graph; and the operators around.

    Of the operators `begun` ones did something on the device, and launched nothing.
    """

    timeline: Timeline
    calls: Ints
    captured: Bools
    begun: Ints

    @cached_property
    def holes(self) -> Holes:
        """The stretches without launches."""
        found = self._windows
        share = found.expected / max(len(self.calls), 1)
        jumps = self._jumps(found.before)
        jumped = (jumps >= _FEW) & ((found.kinds >= _KINDS) | (share >= _SHARE))
        # The numbers cannot tell of what was before the first call and after the last one.
        least = np.where(found.before > 0, _PARTS[0], _PARTS[self.outside == 0])
        several = (found.kinds >= _MANY_KINDS) | ((found.kinds >= _KINDS) & (share >= _MOST))
        many = (jumps < 0) & several & (share >= least)
        proven = self._proven(found.before)
        proves = (proven >= _FEW) & (proven >= _PROVEN * found.expected)
        least = np.maximum(_FEW, _LEAST * len(self.calls))
        enough = (found.expected >= _FEW) & (np.maximum(jumps, found.expected) >= least)
        here = (jumped | many | proves) & enough
        lost = np.maximum(jumps, found.expected)[here]
        return Holes(round(float(lost.sum())), found.start[here])

    def _proven(self, before: Ints) -> Ints:
        """For each window how many operators in it did something on the device."""
        start = self.timeline.host.start
        at = np.searchsorted(start[self._bounds], start[self.begun])
        found: Ints = np.bincount(at, minlength=len(self._bounds) + 1)[before]
        return found

    def scattered(self) -> int:
        """How many launches are missing here and there, at least."""
        launched, runs = self._launched, self._runs
        names = np.flatnonzero(launched > 1)
        if len(names) < _MANY_KINDS or launched[names].sum() < _LAUNCHES:
            return 0
        share = launched[names] / runs[names]
        names = names[np.argsort(-share, kind="stable")]
        held = np.cumsum(launched[names])
        names = names[: int(np.searchsorted(held, _SURE * held[-1])) + 1]
        least = float(launched[names[-1]] / runs[names[-1]])
        if least > _ALWAYS:
            return 0
        by_chance = self._by_chance(names) or self._by_chance(np.flatnonzero(launched > 1))
        return round(len(self.calls) * (1 / least - 1)) if by_chance else 0

    def _by_chance(self, names: Ints) -> bool:
        """Whether operators of these names that launch nothing stand alone, as chance has it, not in runs."""
        rows = np.flatnonzero(self._operators & np.isin(self.timeline.host.name, names))
        idle = ~self._launching[rows]  # by thread, then time
        alone = idle[1:-1] & ~idle[:-2] & ~idle[2:]
        return bool(alone.sum() >= _APART * (1 - idle.mean()) ** 2 * idle[1:-1].sum() > 0)

    @cached_property
    def outside(self) -> int:
        """How many launches come before the first operator of their thread or after the last one."""
        host = self.timeline.host
        operators = np.flatnonzero(self._operators)
        if not len(operators):
            return 0
        # A thread without operators is held against those of all threads.
        first = np.full(len(self.timeline.threads), host.start[operators].min())
        last = np.full(len(self.timeline.threads), host.end[operators].max())
        for thread in distinct(host.thread[operators]).tolist():
            own = operators[host.thread[operators] == thread]
            first[thread], last[thread] = host.start[own].min(), host.end[own].max()
        thread, begun = host.thread[self.calls], host.start[self.calls]
        beyond = ((begun < first[thread]) | (begun > last[thread])) & ~self.captured
        bare = np.count_nonzero((self._around < 0) & ~beyond)  # some libraries launch without operators
        return int(np.count_nonzero(beyond)) if bare <= _BARE * len(begun) else 0

    @cached_property
    def _operators(self) -> Bools:
        found: Bools = self.timeline.host.kind == HostKind.OPERATOR
        return found

    @cached_property
    def _around(self) -> Ints:
        """The innermost operator around each launch, or -1."""
        kind, around = self.timeline.host.kind, self.timeline.parents[self.calls]
        while (other := (around >= 0) & (kind[around] != HostKind.OPERATOR)).any():
            around[other] = self.timeline.parents[around[other]]
        return around

    @cached_property
    def _launching(self) -> Bools:
        """Which rows of the host are the innermost operators around launches."""
        found: Bools = np.zeros(len(self.timeline.host), bool)
        found[self._around[self._around >= 0]] = True
        return found

    @cached_property
    def _bounds(self) -> Ints:
        """The launches, and the first and the last call that the driver numbered, by start."""
        host = self.timeline.host
        rows = np.flatnonzero((host.kind == HostKind.CALL) & (host.correlation > 0))
        ends = rows[[host.start[rows].argmin(), host.start[rows].argmax()]] if len(rows) else rows
        rows = distinct(np.concatenate([self.calls, ends]))
        return rows[np.argsort(host.start[rows], kind="stable")]

    @cached_property
    def _runs(self) -> Ints:
        """How often operators of each name run."""
        return np.bincount(self.timeline.host.name[self._operators], minlength=len(self.timeline.names))

    @cached_property
    def _launched(self) -> Ints:
        """How often operators of each name launch."""
        return np.bincount(self.timeline.host.name[self._launching], minlength=len(self.timeline.names))

    @cached_property
    def _windows(self) -> _Windows:
        """What operators that launched nothing would have launched, by the other calls of their names."""
        host, names = self.timeline.host, max(len(self.timeline.names), 1)
        idle = np.flatnonzero(self._operators & ~self._launching)
        idle = idle[self._launched[host.name[idle]] > 1]
        window = np.searchsorted(host.start[self._bounds], host.start[idle])
        pairs, counts = np.unique(window * names + host.name[idle], return_counts=True)
        name = pairs % names
        elsewhere = self._launched[name] / np.maximum(self._runs[name] - counts, 1)
        before, at = np.unique(pairs // names, return_inverse=True)
        kinds = np.bincount(at[elsewhere > _OFTEN], minlength=len(before))
        start = np.full(len(before), np.iinfo(np.int64).max)
        np.minimum.at(start, np.searchsorted(before, window), host.start[idle])
        expected = np.bincount(at, (counts * elsewhere).astype(np.float64), len(before))
        return _Windows(before, expected.astype(np.float64), kinds, start)

    def _jumps(self, before: Ints) -> Floats:
        """For each window how many launches jumps of the driver's numbers stand for.

        0 where they go on as usual, -1 where there is none on one of the sides. Calls of other threads that
        poll for events take numbers too, and are recorded.
        """
        host = self.timeline.host
        bounds = host.correlation[self._bounds]
        found = np.full(len(before), -1.0)
        inner = (before > 0) & (before < len(bounds))
        numbers = distinct(host.correlation[(host.kind == HostKind.CALL) & (host.correlation > 0)])
        if not inner.any() or not (bounds > 0).all():
            return found
        steps = np.diff(numbers)
        usual = _JUMP * percentile(steps, _USUAL)
        launches = len(self.calls) / max(int(steps[steps <= usual].sum()), 1)
        far = np.append(0, np.cumsum(np.where(steps > usual, steps, 0)))
        ends = np.searchsorted(numbers, [bounds[before[inner] - 1], bounds[before[inner]]])
        found[inner] = np.abs(far[ends[1]] - far[ends[0]]) * launches
        return found
