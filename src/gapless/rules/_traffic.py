"""The communication of one profile, step by step."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gapless.model import Profile
from gapless.model.profile import SYNCHRONIZING, Collectives

_MIN_REPEATS = 3
"""How often the same collective must occur to know its fastest time."""


@dataclass(frozen=True)
class CollectiveKernels:
    """The kernels of one collective and group in `steps` whole steps.

    `positions` are the numbers of the kernels in their steps, `lengths` nanoseconds, `elements` -1 where they
    were not recorded.
    """

    name: str
    group: str
    steps: int
    positions: tuple[int, ...]
    lengths: tuple[int, ...]
    elements: tuple[int, ...]

    @property
    def count(self) -> float:
        """Kernels per step."""
        return len(self.lengths) / self.steps

    @property
    def time(self) -> float:
        """Nanoseconds per step in its kernels."""
        return sum(self.lengths) / self.steps

    @property
    def sent(self) -> float:
        """Elements per step, -1 where they were not recorded."""
        return -1.0 if min(self.elements) < 0 else sum(self.elements) / self.steps

    @property
    def excess(self) -> float:
        """Nanoseconds per step by which its kernels exceed the fastest of the same ones.

        The same ones have the same size, or, where sizes were not recorded, the same position in the step.
        """
        if self.name not in SYNCHRONIZING:
            return 0.0
        same: dict[int, list[int]] = defaultdict(list)
        keys = self.elements if min(self.elements) >= 0 else self.positions
        if keys is self.positions and len(self.lengths) % self.steps:
            return 0.0  # the steps differ, so places say nothing
        for key, length in zip(keys, self.lengths, strict=True):
            same[key].append(length)
        over = (sum(some) - len(some) * min(some) for some in same.values() if len(some) >= _MIN_REPEATS)
        return sum(over) / self.steps

    def only(self, rows: Iterable[int]) -> CollectiveKernels | None:
        """Return the kernels in `rows`; None without any."""
        kept = list(rows)
        if not kept:
            return None
        columns = (
            tuple(column[row] for row in kept) for column in (self.positions, self.lengths, self.elements)
        )
        return CollectiveKernels(self.name, self.group, self.steps, *columns)


def step_traffic(profile: Profile) -> list[CollectiveKernels]:
    """Return the communication of `profile` in its steps, the longest first."""
    traffics = (_traffic_of(profile, collective) for collective in profile.collectives)
    return sorted(
        (part for part in traffics if part is not None), key=lambda part: (-part.time, part.name, part.group)
    )


def _traffic_of(profile: Profile, collective: Collectives) -> CollectiveKernels | None:
    starts = profile.steps.start
    by_step: dict[int, list[int]] = defaultdict(list)
    for row, (start, length) in enumerate(zip(collective.start, collective.length, strict=False)):
        step = bisect_right(starts, start + length // 2) - 1
        if 0 <= step < profile.steps.count and start < profile.steps.end[step]:
            by_step[step].append(row)
    if not by_step:
        return None
    # Summaries keep the first kernels only: the step in which they end is not whole.
    usual = sorted(map(len, by_step.values()))[len(by_step) // 2]
    whole = [rows for rows in by_step.values() if 2 * len(rows) >= usual]
    rows = [row for some in whole for row in some]
    elements = collective.elements or (-1,) * len(collective.start)
    return CollectiveKernels(
        collective.name,
        collective.group,
        len(whole),
        tuple(position for some in whole for position in range(len(some))),
        tuple(collective.length[row] for row in rows),
        tuple(elements[row] for row in rows),
    )
