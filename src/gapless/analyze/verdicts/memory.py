"""The verdict on a run's memory: whether it fits, what is missing, and which setting helps."""

from __future__ import annotations

from gapless.model import Verdict
from gapless.model.memory import MemoryReport
from gapless.model.verdict import Level


def verdict(made: MemoryReport) -> Verdict:
    """The first lines of what a replay says."""
    answer = made.answer
    level: Level = "failed" if made.lack is not None else "act" if answer.do_first else "fine"
    why = [*answer.why, *([made.advice] if made.advice and not answer.do_first else [])]
    return Verdict(
        sentence=made.sentence,
        level="unknown" if level == "fine" and not made.replayed else level,
        why=tuple(f"{one[:1].upper()}{one[1:]}" for one in why),
        do_first=answer.do_first,
        confidence=answer.confidence,
        per="",
    )
