"""Find launches that are missing together with their call, their work and all links between them.

The operators around them reveal them: operators that launch in all their other calls have launched nothing.
If launches are missing **in one stretch**, the driver's call numbers, of which torch records every fifth or
so, jump across it. Neither is enough alone: the same operators run on CPU tensors, and loading a library
takes a thousand numbers. If launches are missing **here and there**, no operator is left that always
launches; in a whole profile such operators do at least a quarter of the launches. If the operators are
missing too, launches lie **outside** of the time that operators cover.

Of 106 whole public profiles none has any of these signs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gapless.trace.timeline import Bools, Floats, HostKind, Ints, Timeline, distinct, percentile

_MIN_LAUNCHING_SHARE = 0.5
"""An operator that launches in more than this share of its calls should have launched."""
_MIN_LAUNCHES_LOST = 3.0
"""Fewer missing launches are not reported."""
_MIN_SHARE_LOST = 0.01
"""Share of the launches that a stretch must hold: setting up libraries makes smaller jumps."""
_MIN_JUMP = 5
"""How many times the usual step makes a jump of the driver's numbers."""
_USUAL_PERCENTILE = 75
"""Percentile of the steps between recorded numbers that counts as the usual step."""
_MIN_SHARE_WITH_JUMP, _MIN_NAMES_WITH_JUMP = 0.05, 2
"""With a jump: operators for this share of the launches, or of so many names, launched nothing."""
_MIN_SHARES_WITHOUT_JUMP, _MIN_NAMES_WITHOUT_JUMP = (0.05, 0.25), 5
"""Without numbers: these shares at the end and at the beginning, and so many names; or ..."""
_SURE_SHARE_WITHOUT_JUMP = 0.5
"""... this share, and only as many names as with a jump."""
_MIN_SHARE_PROVEN = 0.1
"""Share of the expected launches for which operators did something on the device, as the only evidence."""
_ALWAYS_LAUNCHING_SHARE = 0.95
"""Operators above this share always launch, except for tensors without elements."""
_SHARE_OF_SURE_OPERATORS = 0.25
"""Share of the launches that come from operators which always launch."""
_MIN_LAUNCHES = 20
"""Fewer launches do not show what always launches."""
_MAX_SHARE_BARE = 0.02
"""Share of the launches that may have no operator around them where operators were recorded."""
_MIN_SHARE_ALONE = 0.5
"""Losses at random stand alone at least this many times as often as chance predicts."""


class Holes(NamedTuple):
    """Missing launches: their estimated number, and the times at which the stretches begin."""

    lost: int
    start: Ints


class _LaunchGaps(NamedTuple):
    """Gaps between launches: launches before each, launches expected, names of operators, begin."""

    before: Ints
    expected: Floats
    kinds: Ints
    start: Ints


@dataclass(frozen=True)
class LaunchTrace:
    """Launching `calls` by start, which of them were `captured` into a graph, and the operators around.

    `begun` operators did something on the device, yet launched nothing.
    """

    timeline: Timeline
    calls: Ints
    captured: Bools
    begun: Ints

    @cached_property
    def holes(self) -> Holes:
        """The stretches without launches."""
        windows = self._windows
        share = windows.expected / max(len(self.calls), 1)
        jumps = self._jumps(windows.before)
        jumped = (jumps >= _MIN_LAUNCHES_LOST) & (
            (windows.kinds >= _MIN_NAMES_WITH_JUMP) | (share >= _MIN_SHARE_WITH_JUMP)
        )
        # Jumps cannot be seen before the first call and after the last one.
        least = np.where(
            windows.before > 0, _MIN_SHARES_WITHOUT_JUMP[0], _MIN_SHARES_WITHOUT_JUMP[self.outside == 0]
        )
        several = (windows.kinds >= _MIN_NAMES_WITHOUT_JUMP) | (
            (windows.kinds >= _MIN_NAMES_WITH_JUMP) & (share >= _SURE_SHARE_WITHOUT_JUMP)
        )
        many = (jumps < 0) & several & (share >= least)
        proven = self._proven(windows.before)
        proves = (proven >= _MIN_LAUNCHES_LOST) & (proven >= _MIN_SHARE_PROVEN * windows.expected)
        least = np.maximum(_MIN_LAUNCHES_LOST, _MIN_SHARE_LOST * len(self.calls))
        enough = (windows.expected >= _MIN_LAUNCHES_LOST) & (np.maximum(jumps, windows.expected) >= least)
        here = (jumped | many | proves) & enough
        lost = np.maximum(jumps, windows.expected)[here]
        return Holes(round(float(lost.sum())), windows.start[here])

    def _proven(self, before: Ints) -> Ints:
        """Count for each window the operators that did something on the device."""
        start = self.timeline.host.start
        at = np.searchsorted(start[self._bounds], start[self.begun])
        counts: Ints = np.bincount(at, minlength=len(self._bounds) + 1)[before]
        return counts

    def scattered_losses(self) -> int:
        """Return how many launches are missing here and there, at least."""
        launched, runs = self._launches_by_name, self._runs
        names = np.flatnonzero(launched > 1)
        if len(names) < _MIN_NAMES_WITHOUT_JUMP or launched[names].sum() < _MIN_LAUNCHES:
            return 0
        share = launched[names] / runs[names]
        names = names[np.argsort(-share, kind="stable")]
        held = np.cumsum(launched[names])
        names = names[: int(np.searchsorted(held, _SHARE_OF_SURE_OPERATORS * held[-1])) + 1]
        least = float(launched[names[-1]] / runs[names[-1]])
        if least > _ALWAYS_LAUNCHING_SHARE:
            return 0
        by_chance = self._by_chance(names) or self._by_chance(np.flatnonzero(launched > 1))
        return round(len(self.calls) * (1 / least - 1)) if by_chance else 0

    def _by_chance(self, names: Ints) -> bool:
        """Whether operators of these names without a launch are scattered at random, not in runs."""
        rows = np.flatnonzero(self._operators & np.isin(self.timeline.host.name, names))
        idle = ~self._launching[rows]  # by thread, then time
        alone = idle[1:-1] & ~idle[:-2] & ~idle[2:]
        return bool(alone.sum() >= _MIN_SHARE_ALONE * (1 - idle.mean()) ** 2 * idle[1:-1].sum() > 0)

    @cached_property
    def outside(self) -> int:
        """How many launches come before the first operator of their thread or after the last one."""
        host = self.timeline.host
        operators = np.flatnonzero(self._operators)
        if not len(operators):
            return 0
        # A thread without operators is compared with the operators of all threads.
        first = np.full(len(self.timeline.threads), host.start[operators].min())
        last = np.full(len(self.timeline.threads), host.end[operators].max())
        for thread in distinct(host.thread[operators]).tolist():
            own = operators[host.thread[operators] == thread]
            first[thread], last[thread] = host.start[own].min(), host.end[own].max()
        thread, begun = host.thread[self.calls], host.start[self.calls]
        beyond = ((begun < first[thread]) | (begun > last[thread])) & ~self.captured
        bare = np.count_nonzero((self._around < 0) & ~beyond)  # some libraries launch without operators
        return int(np.count_nonzero(beyond)) if bare <= _MAX_SHARE_BARE * len(begun) else 0

    @cached_property
    def _operators(self) -> Bools:
        is_operator: Bools = self.timeline.host.kind == HostKind.OPERATOR
        return is_operator

    @cached_property
    def _around(self) -> Ints:
        """The innermost operator around each launch, or -1."""
        kind, around = self.timeline.host.kind, self.timeline.parents[self.calls]
        while (is_other := (around >= 0) & (kind[around] != HostKind.OPERATOR)).any():
            around[is_other] = self.timeline.parents[around[is_other]]
        return around

    @cached_property
    def _launching(self) -> Bools:
        """Which host rows are the innermost operators around launches."""
        is_launching: Bools = np.zeros(len(self.timeline.host), bool)
        is_launching[self._around[self._around >= 0]] = True
        return is_launching

    @cached_property
    def _bounds(self) -> Ints:
        """The launches and the first and last call that the driver numbered, by start."""
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
    def _launches_by_name(self) -> Ints:
        """How often operators of each name launch."""
        return np.bincount(self.timeline.host.name[self._launching], minlength=len(self.timeline.names))

    @cached_property
    def _windows(self) -> _LaunchGaps:
        """What operators that launched nothing should have launched, judged by other calls of their names."""
        host, names = self.timeline.host, max(len(self.timeline.names), 1)
        idle = np.flatnonzero(self._operators & ~self._launching)
        idle = idle[self._launches_by_name[host.name[idle]] > 1]
        window = np.searchsorted(host.start[self._bounds], host.start[idle])
        pairs, counts = np.unique(window * names + host.name[idle], return_counts=True)
        name = pairs % names
        elsewhere = self._launches_by_name[name] / np.maximum(self._runs[name] - counts, 1)
        before, at = np.unique(pairs // names, return_inverse=True)
        kinds = np.bincount(at[elsewhere > _MIN_LAUNCHING_SHARE], minlength=len(before))
        start = np.full(len(before), np.iinfo(np.int64).max)
        np.minimum.at(start, np.searchsorted(before, window), host.start[idle])
        expected = np.bincount(at, (counts * elsewhere).astype(np.float64), len(before))
        return _LaunchGaps(before, expected.astype(np.float64), kinds, start)

    def _jumps(self, before: Ints) -> Floats:
        """Estimate for each window how many launches the jumps of the driver's numbers stand for.

        0 if there is no jump, -1 if a side has no number. Calls of other threads that poll for events take
        numbers too, and are recorded.
        """
        host = self.timeline.host
        bounds = host.correlation[self._bounds]
        jumps = np.full(len(before), -1.0)
        inner = (before > 0) & (before < len(bounds))
        numbers = distinct(host.correlation[(host.kind == HostKind.CALL) & (host.correlation > 0)])
        if not inner.any() or not (bounds > 0).all():
            return jumps
        steps = np.diff(numbers)
        max_usual = _MIN_JUMP * percentile(steps, _USUAL_PERCENTILE)
        launches = len(self.calls) / max(int(steps[steps <= max_usual].sum()), 1)
        far = np.append(0, np.cumsum(np.where(steps > max_usual, steps, 0)))
        ends = np.searchsorted(numbers, [bounds[before[inner] - 1], bounds[before[inner]]])
        jumps[inner] = np.abs(far[ends[1]] - far[ends[0]]) * launches
        return jumps
