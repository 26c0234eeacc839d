"""The immutable values that Gapless records, saves and reports; each has its own module."""

from gapless.model.compiled import Compiled, GraphBreak, Recompile
from gapless.model.event import INDEX_OR_VALUE, Event, Mechanism, Phase, Site, StepMark
from gapless.model.finding import Finding, Frequency, Loss, When
from gapless.model.graph_fault import GraphFault
from gapless.model.profile import Cause, Cost, Profile
from gapless.model.race import Race
from gapless.model.ranks import Ranks, Reason, Straggler
from gapless.model.report import RankSummary, Report, StepSummary
from gapless.model.rule import (
    FINE,
    NOTHING,
    SECTIONS,
    CompiledRule,
    GraphRule,
    Hit,
    LoaderRule,
    MemoryRule,
    OptimizerRule,
    ProfileRule,
    RaceRule,
    RanksRule,
    Rule,
    WaitRule,
)
from gapless.model.session import Ending, Environment, Recurrence, Session
from gapless.model.source import SourceLine, Stack, library_frames, user_line
from gapless.model.table import Table
from gapless.model.use import Span, Use, UseKind
from gapless.model.verdict import Change, Verdict

__all__ = [
    "FINE",
    "INDEX_OR_VALUE",
    "NOTHING",
    "SECTIONS",
    "Cause",
    "Change",
    "Compiled",
    "CompiledRule",
    "Cost",
    "Ending",
    "Environment",
    "Event",
    "Finding",
    "Frequency",
    "GraphBreak",
    "GraphFault",
    "GraphRule",
    "Hit",
    "LoaderRule",
    "Loss",
    "Mechanism",
    "MemoryRule",
    "OptimizerRule",
    "Phase",
    "Profile",
    "ProfileRule",
    "Race",
    "RaceRule",
    "RankSummary",
    "Ranks",
    "RanksRule",
    "Reason",
    "Recompile",
    "Recurrence",
    "Report",
    "Rule",
    "Session",
    "Site",
    "SourceLine",
    "Span",
    "Stack",
    "StepMark",
    "StepSummary",
    "Straggler",
    "Table",
    "Use",
    "UseKind",
    "Verdict",
    "WaitRule",
    "When",
    "library_frames",
    "user_line",
]
