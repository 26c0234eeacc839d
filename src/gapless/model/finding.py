"""`Finding`: a rule that applies at a place."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.event import Site
from gapless.model.profile import Price
from gapless.model.source import SourceLine, Stack

When = Literal["every-step", "some-steps", "first-step", "set-up", "evaluation", "phase", "after", "no-steps"]
"""When the waits happen.

``every-step``: in each steady step; ``some-steps``: in some (`Frequency.every` says which); ``first-step``:
only in the first steps, which warm up (or more there than later); ``set-up``: before the training loop;
``evaluation``: while the model is evaluated; ``phase``: in another part of the loop that recurs between
steps, named by `Frequency.phase`; ``after``: after the last step; ``no-steps``: the run had no steps.
"""


RACE_PREFIX = "GAP8"
"""Prefix of the codes of races."""

GRAPH_FAULT_PREFIX = "GAP52"
"""Prefix of the codes of mistakes with CUDA graphs."""

MIN_RARE_INTERVAL = 10
"""Reads of a value this many steps apart count as rare: logging every ten steps costs next to nothing."""


class Frequency(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How often something happens: `waits` per step if `when` is a kind of step, per phase if `times` counts
    them, otherwise in all.

    `per_step` is waits in steady training steps divided by their number. `every` is N for "every N steps", 0
    if there is no regular interval. `total` is the number of waits in the whole run that the finding stands
    for: all findings together have all waits. `phase` is what recurs between steps ("rollout", "checkpoint",
    "epoch end", "evaluation"), `times` how often it occurred, `apart` its interval in steps (0: unknown).
    """

    when: When
    waits: float
    per_step: float = 0.0
    every: int = 0
    total: int = 0
    phase: str = ""
    times: int = 0
    apart: int = 0

    @property
    def rare(self) -> bool:
        """Whether syncs are as rare as logging should be: every ten steps or less often."""
        return self.when == "some-steps" and self.every >= MIN_RARE_INTERVAL and self.waits > 0

    @property
    def in_steps(self) -> bool:
        """Whether it happens in training steps, not in set-up, a phase between them or at the end."""
        return self.when in ("every-step", "some-steps", "no-steps")


class Loss(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The time that goes with a profile's finding: nanoseconds over all steps.

    - `idle`: of the device, by which findings are ranked; `share`: its share of the steps' time.
    - `blocked`: of the host in `calls` calls, by which other tools rank; `working`: the part with the device
      busy.
    - `start`, `end`: where to look in a viewer, since the trace's first event.
    - `rank`: the rank with the finding; -1 if there is only one.
    - `unknown`: the device's loss cannot be determined: `idle` is meaningless, and there is no price.
    """

    idle: int = 0
    share: float = 0.0
    blocked: int = 0
    working: int = 0
    calls: int = 0
    start: int = 0
    end: int = 0
    rank: int = -1
    unknown: bool = False


class Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to reach a line: the user's calls that lead to it, innermost first, and its waits.

    `waits` are per occurrence, as in the `Frequency` of the finding.
    """

    stack: Stack
    waits: float


class Spot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of the lines (or its backward) that a finding covers, with its own waits.

    `remedy` is what to write instead there, if that differs from the finding's.
    """

    line: SourceLine
    backward: bool = False
    waits: float = 0.0
    remedy: str = ""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rule that applies at a user's line.

    - `line`: the line to change; None if a profile has no lines (then `place` says what is known:
      ``aten::index in ProfilerStep``), or if the finding is about the whole run.
    - `evidence`: sentences with the numbers; `loss`: what the device lost; `price`: what removing the waits
      would save.
    - `library_stack`: the frames below the line if the wait is in a library, innermost first.
    - `backward`: the waits happen in backward of the line.
    - `sites`: the distinct sites grouped into this finding.
    - `change`: the remedy in a few words.
    - `spots`: all lines, if one change fixes several, or a line and its backward.
    - `callers`: the ways to the line, if there are several.
    """

    code: str
    name: str
    line: SourceLine | None
    frequency: Frequency
    remedy: str
    place: str = ""
    evidence: tuple[str, ...] = ()
    loss: Loss | None = None
    price: Price | None = None
    operators: tuple[str, ...] = ()
    library_stack: Stack = ()
    backward: bool = False
    node: str = ""
    bytes: int = 0
    sites: tuple[Site, ...] = ()
    change: str = ""
    spots: tuple[Spot, ...] = ()
    callers: tuple[Caller, ...] = ()

    @property
    def is_race(self) -> bool:
        """Whether it may make results wrong; races are listed before everything that costs time."""
        return self.code.startswith(RACE_PREFIX)

    @property
    def is_graph(self) -> bool:
        """Whether it is a mistake with one of the script's CUDA graphs."""
        return self.code.startswith(GRAPH_FAULT_PREFIX)

    @property
    def is_fault(self) -> bool:
        """Whether it makes the script fail or compute wrong results on a GPU."""
        return self.is_race or self.is_graph

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """The lines that it covers, each once, its own first."""
        own = (self.line,) if self.line is not None else ()
        return tuple({(at.file, at.line): at for at in (*own, *(spot.line for spot in self.spots))}.values())
