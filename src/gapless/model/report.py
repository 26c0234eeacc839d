"""`Report`: what every renderer receives."""

from __future__ import annotations

import msgspec

from gapless.model.finding import Finding
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


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Findings, the worst first, with the sentence that sums them up."""

    sentence: str
    script: tuple[str, ...] = ()
    environment: Environment = Environment()
    ending: Ending = Ending()
    steps: StepSummary = StepSummary()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
