"""Two runs, before and after a change, to one `Comparison`."""

from gapless.analyze.compare.profiles import Subject, compare_profiles, slowest
from gapless.analyze.compare.sessions import compare_reports

__all__ = ["Subject", "compare_profiles", "compare_reports", "slowest"]
