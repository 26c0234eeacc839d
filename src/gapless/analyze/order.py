"""The order of findings, decided here alone: what a step loses most to comes first."""

from __future__ import annotations

from collections.abc import Iterable

from gapless.model import Finding, SourceLine

_PHASES = {
    "every-step": 0,
    "some-steps": 0,
    "no-steps": 0,
    "evaluation": 1,
    "phase": 1,
    "first-step": 2,
    "set-up": 3,
}
_LAST = 4


def order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """`findings`, the worst first.

    What may make numbers wrong comes first. Training steps come before evaluation and other phases, and those
    before what happens once. Within each, time that the step loses decides, whatever it is lost to; then the
    number of waits and the time the CPU spends in them.
    """
    return tuple(sorted(findings, key=_weight))


def _weight(one: Finding) -> tuple[object, ...]:
    often, line = one.frequency, one.line or SourceLine("", 0)
    price = one.price.last if one.price is not None and one.price.estimated else 0
    idle, blocked = (one.loss.idle, one.loss.blocked) if one.loss is not None else (0, 0)
    return (
        not one.is_fault,
        _PHASES.get(often.when, _LAST),
        -(idle or price),
        -often.per_step if one.loss is None else 0.0,
        -blocked,
        -often.waits,
        (line.file, line.line, one.backward, one.code, one.place),
        -one.bytes,
        one.remedy,
    )
