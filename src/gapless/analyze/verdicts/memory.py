"""The verdict on a run's memory."""

from __future__ import annotations

from gapless.model import Verdict
from gapless.model.memory import MemoryReport


def verdict(made: MemoryReport) -> Verdict:
    return Verdict(sentence=made.sentence)
