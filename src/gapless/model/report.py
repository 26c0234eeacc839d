"""`Report`: what every renderer receives."""

from __future__ import annotations

import msgspec

from gapless.model.estimate import Estimate
from gapless.model.finding import Finding
from gapless.model.memory import MemoryReport
from gapless.model.profile import Profile
from gapless.model.session import Ending, Environment


class StepSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The steps a capture saw.

    `steady` of `seen` steps count for frequencies (the first ones warm up). `waits_per_step` is the mean
    over the steady ones, `source` what ended a step (``SGD.step``, ``profiler.step()``).
    """

    seen: int = 0
    steady: int = 0
    waits_per_step: float = 0.0
    least: int = 0
    most: int = 0
    source: str = ""


class RankSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One rank of several, in nanoseconds per step.

    `late` is how much later than the first of its peers it reaches their collectives, in the mean over the
    collectives that were matched, times those of a step; -1 where none were.
    """

    rank: int
    path: str = ""
    step: float = 0.0
    idle: float = 0.0
    communication: float = 0.0
    late: float = -1.0
    utilization: float = -1.0


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Findings, the worst first, with the sentence that sums them up.

    `profile` holds the numbers of a trace (of the slowest rank where there are several), `ranks` a row for
    each of several ranks. `estimate` is what a step of a script that was checked would take on a GPU.
    `memory` is what each device's allocator did, where that was recorded. `path` is the saved session that
    was reported ("": it was not read from a file; a profile has its own).
    """

    sentence: str
    script: tuple[str, ...] = ()
    environment: Environment = Environment()
    ending: Ending = Ending()
    steps: StepSummary = StepSummary()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    ranks: tuple[RankSummary, ...] = ()
    estimate: Estimate | None = None
    memory: tuple[MemoryReport, ...] = ()
    path: str = ""
