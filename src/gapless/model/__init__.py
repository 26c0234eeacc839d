"""The nouns of Gapless. Each has one module and one meaning; all are immutable."""

from gapless.model.event import Event, Mark, Mechanism, Phase, Site
from gapless.model.finding import Finding, Frequency, When
from gapless.model.report import Report, StepSummary
from gapless.model.rule import SECTIONS, Rule
from gapless.model.session import Ending, Environment, Session
from gapless.model.source import SourceLine, Stack, library_frames, user_line

__all__ = [
    "SECTIONS",
    "Ending",
    "Environment",
    "Event",
    "Finding",
    "Frequency",
    "Mark",
    "Mechanism",
    "Phase",
    "Report",
    "Rule",
    "Session",
    "Site",
    "SourceLine",
    "Stack",
    "StepSummary",
    "When",
    "library_frames",
    "user_line",
]
