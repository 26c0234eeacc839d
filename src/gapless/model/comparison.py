"""`Comparison`: what changed from one run to another."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.finding import Finding
from gapless.model.memory_comparison import MemoryComparison
from gapless.model.source import SourceLine

State = Literal["gone", "less", "same", "more", "new"]
"""What happened to an item; ``less`` and ``more`` only for changes worth a line."""

Unit = Literal["ns", "bytes", "share", "percent", "count", "waits"]


class Measure(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A number on both sides, in `unit`; -1 if unknown on a side."""

    name: str
    before: float = 0.0
    after: float = 0.0
    unit: Unit = "ns"

    @property
    def known(self) -> bool:
        """Whether both sides have the number."""
        return self.before >= 0 and self.after >= 0

    @property
    def change(self) -> float:
        return self.after - self.before if self.known else 0.0

    @property
    def percent(self) -> float | None:
        """The change in percent of `before`; None if that is unknown or zero."""
        return 100.0 * self.change / self.before if self.known and self.before else None


class Spread(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How much the steps of one side differ, in nanoseconds: the median and the quartiles around it."""

    steps: int
    median: float
    low: float
    high: float


class Side(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of the two runs.

    `name` is what the user called it, `path` the compared file: the slowest rank of `files` if there are
    several. `steps` are marked by `marks` ("": none). `spread` exists from five steps on.
    """

    name: str
    path: str = ""
    files: int = 1
    rank: int = -1
    device: str = ""
    steps: int = 0
    marks: str = ""
    spread: Spread | None = None


class PhaseChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One phase of training: the host's time, that of the device work it launched, and idle time."""

    name: str
    host: Measure
    device: Measure
    idle: Measure


class WorkChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Device time of one kernel, or of all kernels that one operator launches.

    `before` and `after` are nanoseconds, `calls_before` and `calls_after` launches, per step or trace; -1 if
    a side lists only its longest and this is not among them: it takes `at_most` there. `was` is the kernel's
    earlier name if it differs in irrelevant parts.
    """

    name: str
    state: State
    before: float = 0.0
    after: float = 0.0
    calls_before: float = 0.0
    calls_after: float = 0.0
    at_most: float = 0.0
    was: str = ""
    operator: str = ""


class LineChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Device time launched from one of the user's lines, and idle time of the device that it causes.

    `was` and `line` are the line before and after, None on a side without it. `place` stands for both if no
    line is known. Nanoseconds per step or trace; -1 if a side lists only its longest and this is not among
    them.
    """

    state: State
    was: SourceLine | None = None
    line: SourceLine | None = None
    place: str = ""
    device_before: float = 0.0
    device_after: float = 0.0
    idle_before: float = 0.0
    idle_after: float = 0.0


class FindingChange(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One finding before and after; None on a side without it.

    `idle_before` and `idle_after` are nanoseconds of idle device, `calls_before` and `calls_after` how often
    it happens: per step, or in all without steps or outside of them. `unseen`: the earlier run ended before
    it could occur, so it is unknown whether it is new.
    """

    state: State
    before: Finding | None = None
    after: Finding | None = None
    idle_before: float = 0.0
    idle_after: float = 0.0
    calls_before: float = 0.0
    calls_after: float = 0.0
    unseen: bool = False

    @property
    def finding(self) -> Finding:
        """The finding after, or the one before if it is gone."""
        current = self.after or self.before
        assert current is not None, "a change has at least one side"
        return current


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Two runs side by side, in each list the largest changes first.

    - `of`: what was compared: ``profiles`` (nanoseconds), ``sessions`` (waits) or ``memory`` (bytes).
    - `per`: all numbers are means per ``step``, or totals of the ``trace`` or ``run`` if a side has no steps.
    - `length`: the number that the comparison is about: a step's time, its waits, or reserved bytes.
    - `within_spread`: the steps of one side differ as much among themselves as the two sides do.
    - `memory`: None unless both sides recorded it.
    - `notes`: what makes the sides hard to compare.
    - `incomplete`: what is missing in a side's profile, which then allows no conclusion ("": nothing).
    """

    sentence: str
    of: Literal["profiles", "sessions", "memory"]
    per: Literal["step", "trace", "run"]
    before: Side
    after: Side
    length: Measure
    within_spread: bool = False
    idle: Measure | None = None
    split: tuple[Measure, ...] = ()
    measures: tuple[Measure, ...] = ()
    causes: tuple[Measure, ...] = ()
    phases: tuple[PhaseChange, ...] = ()
    kernels: tuple[WorkChange, ...] = ()
    operators: tuple[WorkChange, ...] = ()
    lines: tuple[LineChange, ...] = ()
    findings: tuple[FindingChange, ...] = ()
    memory: MemoryComparison | None = None
    notes: tuple[str, ...] = ()
    incomplete: str = ""


class Scale(msgspec.Struct, frozen=True):
    """A unit of time for several numbers side by side, with the number of decimals."""

    name: str
    nanoseconds: float
    decimals: int

    def __call__(self, nanoseconds: float) -> str:
        return f"{nanoseconds / self.nanoseconds:,.{self.decimals}f}" if nanoseconds else "0"


def scale(largest: float, least: int = 0) -> Scale:
    """Return the scale for times up to `largest` nanoseconds, with at least `least` decimals.

    The largest gets three digits or more: ``178``, ``36.4``, ``8.02``.
    """
    name, size = ("s", 1e9) if largest >= 1e10 else ("ms", 1e6) if largest >= 1e6 else ("µs", 1e3)
    digits = len(str(int(largest / size)))
    return Scale(name, size, max(least, 3 - digits))


def percents(value: float) -> str:
    """Format the size of a percentage without its sign: ``28 %``, ``2.5 %``; nearly 100 is never rounded
    to 100."""
    size = abs(value)
    if 99.5 <= size < 100:
        return f"{min(size, 99.9):.1f} %"
    return f"{size:.0f} %" if size >= 9.95 else f"{size:.1f} %"
