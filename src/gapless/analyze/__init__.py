"""Turn what was saved into what it means: pure functions from a `Session` to a `Report`."""

from gapless.analyze.reports import report
from gapless.analyze.run.steps import WARM_UP, StepTally

__all__ = ["WARM_UP", "StepTally", "report"]
