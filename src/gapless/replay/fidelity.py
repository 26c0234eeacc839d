"""Measure how well the unchanged replay matches the profile: whether a price is a number or a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.replay.host import WAIT
from gapless.replay.model import ReplayModel
from gapless.replay.outcome import ReplayOutcome
from gapless.trace.timeline import Bools, Ints, percentile

MIN_OPERATIONS = 50
"""With fewer device operations nothing can be said."""
MAX_SPAN_ERROR, MAX_DRIFT, MIN_EXPLAINED, MAX_BLOCKED_ERROR = 0.02, 0.02, 0.9, 0.1
"""Largest errors of a replay, as shares of the span, the span, the blocked time and the blocked time."""
MIN_SHARE_OF_SPAN = 0.005
"""Errors of waits that sum to a smaller share of the span are irrelevant."""
MIN_WAIT_NS = 50_000
"""Shorter waits are mostly the call itself, and blurred by clocks of whole microseconds."""


@dataclass(frozen=True)
class ReplayFidelity:
    """The unchanged replay compared with its profile.

    `span_error` is signed and `drift` the 95th percentile of how far device operations begin from their
    recorded begin; both are shares of the span. `explained` is the share of the `blocked` nanoseconds that
    end with the work waited for (1 if nothing was blocked), without short calls that had nothing to wait for.
    `wait_error` is the median relative error of the derived lengths of the `waits` waits that had something
    to wait for and took 50 µs or more (-1: there are none), `blocked_error` the sum of all errors as a share
    of all blocked time. `reasons` say what is too far off.
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
        """Whether prices of this model are numbers; else they are bounds, for `reason`."""
        return not self.reasons

    @property
    def reason(self) -> str:
        return "; ".join(self.reasons)


def measure_fidelity(model: ReplayModel, outcome: ReplayOutcome | None = None) -> ReplayFidelity:
    """Compare the unchanged replay of `model` (`outcome`, if already computed) with its profile."""
    outcome = outcome or model.replay()
    work, span = model.timeline.work, max(model.recorded, 1)
    anchors = model.graph.anchors
    of_wait = anchors.kind == WAIT
    recorded = (anchors.leave - anchors.arrive)[of_wait]
    derived = outcome.stays[of_wait]
    error = np.abs(derived - recorded)
    held = work.end[anchors.work[of_wait]] > anchors.arrive[of_wait]
    counted = (held & (recorded >= MIN_WAIT_NS)) | (derived - anchors.own[of_wait] >= MIN_WAIT_NS)
    explained, blocked = _blocked_times(model, of_wait, held)
    total = int(model.waits.blocked.sum())
    compared = ReplayFidelity(
        span_error=(outcome.span - model.recorded) / span,
        drift=percentile(np.abs(outcome.work_start - work.start), 95) / span,
        explained=explained / blocked if blocked else 1.0,
        blocked=blocked,
        wait_error=_median((error / np.maximum(np.maximum(recorded, derived), 1))[counted]),
        waits=int(counted.sum()),
        blocked_error=int(error.sum()) / total if total else 0.0,
        reasons=(),
    )
    return ReplayFidelity(**{**compared.__dict__, "reasons": _distrust_reasons(model, compared, total, span)})


def _median(values: Ints) -> float:
    return float(np.median(values)) if len(values) else -1.0


def _blocked_times(model: ReplayModel, of_wait: Bools, held: Bools) -> tuple[int, int]:
    """Return the blocked time that the recorded end of the waited-for work explains, and all blocked time."""
    anchors, work, table = model.graph.anchors, model.timeline.work, model.waits
    wait, arrive = anchors.wait[of_wait], anchors.arrive[of_wait]
    due = work.end[anchors.work[of_wait]] + anchors.after[of_wait] - arrive
    part = np.minimum(np.maximum(due, anchors.own[of_wait]), anchors.leave[of_wait] - arrive)
    counted = (table.blocked >= MIN_WAIT_NS) & ~_fixed_waits(model)
    counted[wait[held]] = True
    return int(part[counted[wait]].sum()), int(table.blocked[counted].sum())


def _fixed_waits(model: ReplayModel) -> Bools:
    """Mark waits for unknown work that come before any removable wait: removals cannot change their end."""
    table = model.waits
    first = table.start[model.removable].min(initial=int(table.end.max(initial=0)) + 1)
    fixed: Bools = (table.work < 0) & (table.end <= first)
    return fixed


def _distrust_reasons(model: ReplayModel, compared: ReplayFidelity, total: int, span: int) -> tuple[str, ...]:
    reasons = []
    count = len(model.timeline.work)
    if count < MIN_OPERATIONS:
        reasons.append(f"the profile contains only {count} device operations")
    if model.timeline.facts.truncated:
        reasons.append("the file is truncated")
    if abs(compared.span_error) > MAX_SPAN_ERROR:
        reasons.append(f"the unchanged replay takes {compared.span_error:+.1%} of the recorded time")
    if compared.drift > MAX_DRIFT:
        reasons.append(
            f"device work starts up to {compared.drift:.1%} of the profile away from its recorded start"
        )
    if (
        compared.explained < MIN_EXPLAINED
        and (1 - compared.explained) * compared.blocked > MIN_SHARE_OF_SPAN * span
    ):
        reasons.append(
            f"only {compared.explained:.0%} of the blocked time ends with the work that was waited for"
        )
    if (
        compared.blocked_error > MAX_BLOCKED_ERROR
        and compared.blocked_error * total > MIN_SHARE_OF_SPAN * span
    ):
        reasons.append(f"the lengths of the syncs are {compared.blocked_error:.0%} off")
    return tuple(reasons)
