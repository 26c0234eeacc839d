"""`Report`: what every renderer receives."""

from __future__ import annotations

from typing import Literal

import msgspec

from gapless.model.assumption import Assumption, FailedDry, Switch
from gapless.model.attempt import Attempt, Search
from gapless.model.comparison import Comparison
from gapless.model.compiled import Compiled
from gapless.model.estimate import Estimate
from gapless.model.finding import Finding
from gapless.model.loader_use import LoaderUse
from gapless.model.loading import Diagnosis
from gapless.model.memory_report import MemoryReport
from gapless.model.offer import Offer
from gapless.model.planned import Planned
from gapless.model.profile import Profile
from gapless.model.proof import Proof
from gapless.model.readiness import Readiness
from gapless.model.session import Ending, Environment, Recurrence
from gapless.model.source import SourceLine
from gapless.model.table import Table
from gapless.model.traffic import Traffic
from gapless.model.verdict import Verdict

Kind = Literal["session", "profile", "memory", "loader", "comparison", "proof", "runs"]
"""What a report is of; `runs` sums up several that follow it."""


class StepSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The steps a capture saw.

    `steady` of `seen` steps count for frequencies (the first ones warm up). `waits_per_step` is the mean
    over the steady ones, `source` what ended a step (``SGD.step``, ``profiler.step()``). Where threads or
    asyncio tasks train side by side, `side_by_side` has that mean for each; the other numbers are of all.
    `noun` is what a step is called, which in inference is an iteration, a batch, a token, a denoising step or
    a request.
    """

    seen: int = 0
    steady: int = 0
    waits_per_step: float = 0.0
    least: int = 0
    most: int = 0
    source: str = ""
    side_by_side: tuple[float, ...] = ()
    noun: str = "step"


class RankSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One rank of several, in nanoseconds per step.

    `late` is how much later than the first of its peers it reaches their collectives, in the mean over the
    collectives that were matched, times those of a step; -1 where none were. `incomplete` says why nothing
    can be told of its profile.
    """

    rank: int
    path: str = ""
    step: float = 0.0
    idle: float = 0.0
    communication: float = 0.0
    late: float = -1.0
    utilization: float = -1.0
    incomplete: str = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The document that every command answers with and every renderer receives.

    The `verdict` comes first, then `findings`, what loses most first, `tables` of numbers and `notes`. `kind`
    says what was looked at; the part of that name holds all of its numbers: `profile` those of a trace (of
    the slowest rank where there are several, with a row in `ranks` for each), `memory` what each device's
    allocator did, `loader` what a DataLoader costs, `comparison` two runs and `proof` two callables side by
    side. Of a session, `steps` are the training steps that were seen, `phases` what recurs between them (also
    what was not reached: `times` is 0), `estimate` what a step would take on a GPU, `traffic` what this rank
    sends and receives in one, `offers` what each GPU that was asked about would make of it (`asked` are the
    lines that ask which GPU they run on), `search` the largest value of an argument that fits, `remedies`
    what was tried to make it fit, `loaders` how its loaders fed it, and whether the `unknown` operators wait
    is not known; `assumptions` are the values that a dry run assumed and that decided something, and
    `switch` is where a run went on without values that had them before, `failed_dry` how a run without them
    failed; `readiness` says what of a step a
    CUDA graph could hold, where that was asked; `compiled` is what torch.compile would make of each callable
    that the run compiled; `planned` says how many steps the whole run has, where that is known.
    `path` is the saved file that was reported ("": none).
    """

    verdict: Verdict
    kind: Kind = "session"
    script: tuple[str, ...] = ()
    environment: Environment = Environment()
    ending: Ending = Ending()
    steps: StepSummary = StepSummary()
    phases: tuple[Recurrence, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    switch: Switch | None = None
    failed_dry: FailedDry | None = None
    profile: Profile | None = None
    ranks: tuple[RankSummary, ...] = ()
    estimate: Estimate | None = None
    traffic: tuple[Traffic, ...] = ()
    loaders: tuple[LoaderUse, ...] = ()
    memory: tuple[MemoryReport, ...] = ()
    offers: tuple[Offer, ...] = ()
    asked: tuple[SourceLine, ...] = ()
    search: Search | None = None
    remedies: tuple[Attempt, ...] = ()
    loader: Diagnosis | None = None
    comparison: Comparison | None = None
    proof: Proof | None = None
    readiness: Readiness | None = None
    compiled: tuple[Compiled, ...] = ()
    planned: Planned = Planned()
    path: str = ""

    @property
    def file(self) -> str:
        """The file that was reported, otherwise the script."""
        file = self.profile.path if self.profile is not None else self.path
        return file or "".join(self.script[:1]) or "run"

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, without a full stop."""
        return self.verdict.sentence
