"""From what was saved to what it means: ordered, pure functions, `Session` in, `Report` out."""

from gapless.analyze.reports import report
from gapless.analyze.run.steps import WARM_UP, StepTally

__all__ = ["WARM_UP", "StepTally", "report"]
