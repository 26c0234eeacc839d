"""`Finding`: a rule that applies at a place."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.event import Site
from gapless.model.profile import Price
from gapless.model.source import SourceLine, Stack

When = Literal["every-step", "some-steps", "first-step", "set-up", "evaluation", "phase", "after", "no-steps"]
"""When the waits happen.

``every-step``: in each steady step; ``some-steps``: in some (`Frequency.every` says which);
``first-step``: in the first steps, which warm up, and never again (or beyond what comes in each);
``set-up``: before the training loop; ``evaluation``: while the model is evaluated; ``phase``: in another
part of the loop that recurs between steps, which `Frequency.phase` names; ``after``: after the last step;
``no-steps``: the run had no steps to tell by.
"""


RACE_PREFIX = "GAP8"
"""The beginning of the codes of races."""

GRAPH_FAULT_PREFIX = "GAP52"
"""The beginning of the codes of mistakes with CUDA graphs."""

MIN_RARE_INTERVAL = 10
"""Steps between two reads of a value from which on the reads count as rare enough."""


class Frequency(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How often: `waits` per occurrence: per step where `when` is a kind of step, per phase where `times`
    says how many of them were seen, else in all.

    `per_step` is waits in steady training steps divided by their number. `every` is N for "every N
    steps", 0 where no regular distance shows. `total` counts what the finding stands for in the whole run:
    the totals of all findings are all waits. `phase` is what recurs between steps ("rollout", "checkpoint",
    "epoch end", "evaluation"), `times` how many of them were seen, and `apart` the number of steps from one
    to the next (0 where that is not known).
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
        """Whether it belongs to training steps, not to set-up, a phase between them or the end."""
        return self.when in ("every-step", "some-steps", "no-steps")


class Loss(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a finding of a profile goes with: nanoseconds over all steps.

    `idle` of the device, which is the finding's rank among others; `share` is its part of the steps' time.
    `blocked` of the host in `calls` calls: what other tools rank by; the device was `working` for that part
    of it. `start` and `end` are where to look in a
    viewer, since the trace's first event. `rank` is the rank it was seen on, -1 where there is one only.
    `unknown` says that what the device lost cannot be told: `idle` is nothing to go by then, and there is no
    price.
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
    """A way on which a line is reached: the user's own calls around it, innermost first, and its syncs.

    `waits` are per occurrence, as in the `Frequency` of the finding.
    """

    stack: Stack
    waits: float


class Spot(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of the lines (or its backward) that a finding covers, with its own share of the syncs."""

    line: SourceLine
    backward: bool = False
    waits: float = 0.0


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A rule met at a user's line.

    `line` is the line to change; None where a profile does not say (`place` then tells what is known:
    ``aten::index in ProfilerStep``) or where the finding is of the whole run. `evidence` are sentences with
    the numbers of a profile, `loss` what the device lost and `price` what removing the waits would save.
    `library_stack` are the frames below the line where the wait sits in a library, innermost first.
    `backward` says that the waits happen in backward of that line. `sites` are the distinct sites that were
    grouped into this finding. `change` is the remedy in a few words. Where one change mends several lines, or
    a line and its backward, `spots` names them all; `callers` are there where a line is reached on several
    ways.
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
        """Whether it may make results wrong; races come before everything that costs time."""
        return self.code.startswith(RACE_PREFIX)

    @property
    def is_graph(self) -> bool:
        """Whether it is a mistake with one of the script's CUDA graphs."""
        return self.code.startswith(GRAPH_FAULT_PREFIX)

    @property
    def is_fault(self) -> bool:
        """Whether it makes the script fail or compute something else on a GPU."""
        return self.is_race or self.is_graph

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """The lines that it covers, each once, its own first."""
        own = (self.line,) if self.line is not None else ()
        return tuple({(at.file, at.line): at for at in (*own, *(spot.line for spot in self.spots))}.values())
