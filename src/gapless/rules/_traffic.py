"""The communication of one profile, step by step."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gapless.model import Profile
from gapless.model.profile import SYNCHRONIZING, Collectives

_REPEATS = 3
"""How often the same collective must be seen to know how fast it can be."""


@dataclass(frozen=True)
class Traffic:
    """The kernels of one collective and group that lie in whole steps, `steps` of them.

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
        """Nanoseconds per step by which its kernels are longer than the same at their fastest.

        The same are those of one size, or where sizes were not recorded, those at one place of the step.
        """
        if self.name not in SYNCHRONIZING:
            return 0.0
        same: dict[int, list[int]] = defaultdict(list)
        keys = self.elements if min(self.elements) >= 0 else self.positions
        if keys is self.positions and len(self.lengths) % self.steps:
            return 0.0  # the steps differ, so places say nothing
        for key, length in zip(keys, self.lengths, strict=True):
            same[key].append(length)
        over = (sum(some) - len(some) * min(some) for some in same.values() if len(some) >= _REPEATS)
        return sum(over) / self.steps

    def only(self, rows: Iterable[int]) -> Traffic | None:
        """Some of these kernels; None where there are none."""
        kept = list(rows)
        if not kept:
            return None
        columns = (
            tuple(column[row] for row in kept) for column in (self.positions, self.lengths, self.elements)
        )
        return Traffic(self.name, self.group, self.steps, *columns)


def traffic(profile: Profile) -> list[Traffic]:
    """What `profile` says of communication in its steps, the longest first."""
    found = (_of(profile, one) for one in profile.collectives)
    return sorted((one for one in found if one is not None), key=lambda one: (-one.time, one.name, one.group))


def _of(profile: Profile, one: Collectives) -> Traffic | None:
    starts = profile.steps.start
    by_step: dict[int, list[int]] = defaultdict(list)
    for row, (start, length) in enumerate(zip(one.start, one.length, strict=False)):
        step = bisect_right(starts, start + length // 2) - 1
        if 0 <= step < profile.steps.count and start < profile.steps.end[step]:
            by_step[step].append(row)
    if not by_step:
        return None
    # Summaries keep the first kernels only: the step in which they end is not whole.
    usual = sorted(map(len, by_step.values()))[len(by_step) // 2]
    whole = [rows for rows in by_step.values() if 2 * len(rows) >= usual]
    rows = [row for some in whole for row in some]
    elements = one.elements or (-1,) * len(one.start)
    return Traffic(
        one.name,
        one.group,
        len(whole),
        tuple(position for some in whole for position in range(len(some))),
        tuple(one.length[row] for row in rows),
        tuple(elements[row] for row in rows),
    )
