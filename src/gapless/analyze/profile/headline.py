"""The sentence that sums a profile up."""

from __future__ import annotations

from gapless.model import Cause, Profile
from gapless.model.wording import duration, percent

_CLAUSES: dict[Cause, str] = {
    "input": "it waits for the next batch",
    "wait": "it idles because the host waited for it",
    "communication": "it only communicates, or waits for its peers",
    "launch": "it waits for launches, its kernels being shorter than they take to launch",
    "host": "it idles while the host does something else",
    "allocator": "it idles while memory is taken from the driver or given back",
    "graph": "it is held up by the driver",
    "profiler": "the profiler holds it up",
    "unknown": "it idles for no recorded reason",
}
_ENOUGH = 0.05
"""A cause that takes less than this share of the steps is not worth the sentence."""


def headline(profile: Profile) -> str:
    """``GPU busy 43 % of a 187 ms step; 51 % of the step it waits for the next batch``."""
    total = profile.steps.total
    if not total:
        return "The trace has no time in it"
    span = profile.steps.source == "span"
    length = duration(profile.steps.mean)
    what = f"the {length} recorded" if span else f"a {length} step"
    busy = f"GPU busy {percent(1 - profile.idle / total)} of {what}"
    causes = by_cause(profile)
    if not causes or causes[0][1] < _ENOUGH * total:
        return f"{busy}: it is the GPU's own work that takes the time"
    cause, lost = causes[0]
    return f"{busy}; {percent(lost / total)} of {'that time' if span else 'the step'} {_CLAUSES[cause]}"


def by_cause(profile: Profile) -> list[tuple[Cause, int]]:
    """Idle nanoseconds of each cause, most first."""
    sums: dict[Cause, int] = {}
    for cost in profile.costs:
        sums[cost.cause] = sums.get(cost.cause, 0) + cost.idle
    return sorted(((cause, idle) for cause, idle in sums.items() if idle), key=lambda one: -one[1])
