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
from gapless.model.fix import Fix, FixProof
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

Kind = Literal["session", "profile", "memory", "loader", "comparison", "proof", "edit", "runs"]
"""What a report is about; `runs` summarizes the reports that follow it."""


class StepSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The steps of a capture.

    Frequencies are over the `steady` of the `seen` steps; the first ones warm up. `waits_per_step` is the
    mean over the steady ones, `least` and `most` their extremes, `source` what ended a step (``SGD.step``,
    ``profiler.step()``). If threads or asyncio tasks train side by side, `side_by_side` has the mean of each;
    the other numbers are of all. `noun` is what a step is called: in inference an iteration, a batch, a
    token, …
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
    """One of several ranks, in nanoseconds per step.

    `late` is how much later than the first of its peers it reaches their collectives: the mean over the
    matched ones, times their number per step; -1 if none match. `incomplete` says why its profile allows no
    conclusion.
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
    """The result of every command, which renderers write.

    - `verdict`: the answer; then `findings`, the costliest first, `tables` of numbers, and `notes`.
    - `kind`: what the report is about. The field of that name has its numbers: `profile` (of the slowest
      rank, with a row in `ranks` for each), `memory` (for each device), `loader`, `comparison`, `proof`,
      `edit` (the proof of an edit).
    - `script`, `environment`, `ending`: the run of a session.
    - `steps`: its training steps; `phases`: what recurs between them (`times` is 0 if it was not reached).
    - `estimate`: what a step would take on a GPU; `offers`: the same for each GPU in question, and whether
      the run fits; `asked`: the script's lines that query which GPU it has.
    - `traffic`: what this rank sends and receives per step.
    - `search`: the largest value of an argument that fits; `remedies`: changes tried to make the run fit.
    - `loaders`: how the run's loaders fed it.
    - `unknown`: operators of which it is unknown whether the CPU waits for them.
    - `assumptions`: values that a dry run assumed and that decided something; `switch`: from where on the run
      had no values; `failed_dry`: how a run without values failed.
    - `readiness`: how much of a step a CUDA graph could hold; None if not requested.
    - `compiled`: what torch.compile would make of each callable that the run compiled.
    - `planned`: the number of steps of the whole run.
    - `path`: the saved file that was reported ("": none).
    - `fixes`: for each place of a session that waits, in formats for programs: the change, or why there is
      none. Files of their edits are relative to the folder `project`.
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
    edit: FixProof | None = None
    readiness: Readiness | None = None
    compiled: tuple[Compiled, ...] = ()
    planned: Planned = Planned()
    path: str = ""
    project: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def file(self) -> str:
        """The reported file, otherwise the script."""
        file = self.profile.path if self.profile is not None else self.path
        return file or "".join(self.script[:1]) or "run"

    @property
    def sentence(self) -> str:
        """The verdict as a sentence, without a full stop."""
        return self.verdict.sentence
