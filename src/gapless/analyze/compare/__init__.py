"""Two runs, before and after a change, to one `Comparison`."""

from gapless.analyze.compare.gate import find_regressions, has_grown
from gapless.analyze.compare.profiles import compare_profiles
from gapless.analyze.compare.sessions import compare_reports
from gapless.analyze.compare.subject import ComparisonSide, slowest, subject

__all__ = [
    "ComparisonSide",
    "compare_profiles",
    "compare_reports",
    "find_regressions",
    "has_grown",
    "slowest",
    "subject",
]
