"""Order findings, in this place only: what a step loses most to comes first."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import Finding, SourceLine

_PHASE_RANKS = {
    "every-step": 0,
    "some-steps": 0,
    "no-steps": 0,
    "evaluation": 1,
    "phase": 1,
    "first-step": 2,
    "set-up": 3,
}
"""Training steps before phases, and phases before what happens once."""
_LAST_RANK = 4
"""Rank of what happens after the last step."""


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort `findings`, the worst first.

    What may make numbers wrong comes first; then training steps, then evaluation and other phases, then what
    happens once. Within each, the time that a step loses decides, then the number of waits and the time the
    CPU is blocked in them.
    """
    return tuple(sorted(findings, key=_sort_key))


def _sort_key(finding: Finding) -> tuple[object, ...]:
    """Return what findings are sorted by; lower comes first."""
    timing, line = finding.frequency, finding.line or SourceLine("", 0)
    price = finding.price.last if finding.price is not None and finding.price.estimated else 0
    idle, blocked = (finding.loss.idle, finding.loss.blocked) if finding.loss is not None else (0, 0)
    return (
        not finding.is_fault,
        _PHASE_RANKS.get(timing.when, _LAST_RANK),
        -(idle or price),
        -timing.per_step if finding.loss is None else 0.0,
        -blocked,
        -timing.waits,
        (line.file, line.line, finding.backward, finding.code, finding.place),
        -finding.bytes,
        finding.remedy,
    )
