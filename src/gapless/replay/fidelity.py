"""How well the unchanged replay meets the profile: whether a price is a number or a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.model import Model
from gapless.replay.outcome import Outcome
from gapless.trace.timeline import Bools, Ints, percentile

LEAST_WORK = 50
"""Device operations below which nothing is said."""
SPAN, DRIFT, EXPLAINED, BLOCKED = 0.02, 0.02, 0.9, 0.1
"""How far a replay may be off: shares of the span, of the span, of the blocked time, of the blocked time."""
SMALL = 0.005
"""A share of the span: errors of waits that sum to less decide nothing."""
SHORT = 50_000
"""Nanoseconds: shorter waits are mostly the call itself, and clocks of whole microseconds blur them."""


@dataclass(frozen=True)
class Fidelity:
    """The unchanged replay against the profile it was made from.

    `span_error` is signed and `drift` the 95th percentile of how far device operations begin from where they
    began; both are shares of the span. `explained` is the share of the `blocked` nanoseconds that end with
    the work waited for (1 where nothing was blocked); short calls that had nothing to wait for are no part
    of these. `wait_error` is the median relative error of the derived
    lengths of the `waits` waits that had something to wait for and took 50 µs or more (-1: there are none),
    `blocked_error` the sum of all errors as a share of all blocked time. `reasons` say what is too far off.
    """

    span_error: float
    drift: float
    explained: float
    blocked: int
    wait_error: float
    waits: int
    blocked_error: float
    reasons: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        """Whether prices from this model are numbers; else they are bounds, for `reason`."""
        return not self.reasons

    @property
    def reason(self) -> str:
        return "; ".join(self.reasons)


def fidelity(model: Model, outcome: Outcome | None = None) -> Fidelity:
    """Compares the unchanged replay of `model` (`outcome`, where it is at hand) with its profile."""
    outcome = outcome or model.replay()
    work, span = model.timeline.work, max(model.recorded, 1)
    anchors = model.graph.anchors
    of_wait = anchors.wait >= 0
    recorded = (anchors.leave - anchors.arrive)[of_wait]
    derived = outcome.stays[of_wait]
    error = np.abs(derived - recorded)
    held = work.end[anchors.work[of_wait]] > anchors.arrive[of_wait]
    counted = (held & (recorded >= SHORT)) | (derived - anchors.own[of_wait] >= SHORT)
    explained, blocked = _explained(model, of_wait, held)
    total = int(model.waits.blocked.sum())
    found = Fidelity(
        span_error=(outcome.span - model.recorded) / span,
        drift=percentile(np.abs(outcome.work_start - work.start), 95) / span,
        explained=explained / blocked if blocked else 1.0,
        blocked=blocked,
        wait_error=_median((error / np.maximum(np.maximum(recorded, derived), 1))[counted]),
        waits=int(counted.sum()),
        blocked_error=int(error.sum()) / total if total else 0.0,
        reasons=(),
    )
    return Fidelity(**{**found.__dict__, "reasons": _reasons(model, found, total, span)})


def _median(values: Ints) -> float:
    return float(np.median(values)) if len(values) else -1.0


def _explained(model: Model, of_wait: Bools, held: Bools) -> tuple[int, int]:
    """The blocked time that what is waited for accounts for, by the profile's own times; and all of it."""
    anchors, work, table = model.graph.anchors, model.timeline.work, model.waits
    wait, arrive = anchors.wait[of_wait], anchors.arrive[of_wait]
    due = work.end[anchors.work[of_wait]] + anchors.after[of_wait] - arrive
    part = np.minimum(np.maximum(due, anchors.own[of_wait]), anchors.leave[of_wait] - arrive)
    counted = (table.blocked >= SHORT) & ~_fixed(model)
    counted[wait[held]] = True
    return int(part[counted[wait]].sum()), int(table.blocked[counted].sum())


def _fixed(model: Model) -> Bools:
    """Waits for something that the profile does not show, before any that could be left out: whatever is left
    out, they end when they did."""
    table = model.waits
    first = table.start[model.removable].min(initial=int(table.end.max(initial=0)) + 1)
    found: Bools = (table.work < 0) & (table.end <= first)
    return found


def _reasons(model: Model, found: Fidelity, total: int, span: int) -> tuple[str, ...]:
    reasons = []
    count = len(model.timeline.work)
    if count < LEAST_WORK:
        reasons.append(f"the profile contains only {count} device operations")
    if model.timeline.facts.truncated:
        reasons.append("the file is truncated")
    if abs(found.span_error) > SPAN:
        reasons.append(f"the unchanged replay takes {found.span_error:+.1%} of the recorded time")
    if found.drift > DRIFT:
        reasons.append(
            f"device work starts up to {found.drift:.1%} of the profile away from its recorded start"
        )
    if found.explained < EXPLAINED and (1 - found.explained) * found.blocked > SMALL * span:
        reasons.append(
            f"only {found.explained:.0%} of the blocked time ends with the work that was waited for"
        )
    if found.blocked_error > BLOCKED and found.blocked_error * total > SMALL * span:
        reasons.append(f"the lengths of the syncs are {found.blocked_error:.0%} off")
    return tuple(reasons)
