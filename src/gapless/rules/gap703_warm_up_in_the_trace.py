"""GAP703."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent
from gapless.rules import _profile as told
from gapless.rules._profile import Spot

_LONGER = 1.5
"""How many times longer than the others the first step is."""
_EXCESS = 0.1
"""The share of the trace that its surplus must have to change the numbers."""
_NOT_ONCE = ("GraphLaunch", "Synchronize")
"""Parts of the names of long calls that a program makes in every step."""
_STEPS = 3
"""With fewer steps nothing tells which of them is the usual one."""


class WarmUpInTheTrace(ProfileRule):
    """The start of the program is in the trace and is included in all numbers.

    ## What waits
    In its first step a program loads kernels, tries algorithms, compiles, requests memory from the driver
    and starts its DataLoader workers; in its first recorded step the profiler sets itself up.

    ## Why it costs
    Training pays this once, but it counts fully in the averages of a short profile: causes that never
    come back look important.

    ## Example
    ```python
    with torch.profiler.profile() as prof:
        train(steps=3)
    ```

    ## Use instead
    ```python
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)
    with torch.profiler.profile(schedule=schedule) as prof:
        train(steps=10, after_each=prof.step)
    ```

    ## When it is fine
    If you want to see the start."""

    code = "GAP703"
    name = "warm-up-in-the-trace"
    advice = (
        "exclude the first steps from the profile: `torch.profiler.schedule(wait=5, warmup=2, active=3)`, "
        "with `prof.step()` at the end of each step"
    )
    change = "exclude the first steps: `schedule(wait=5)`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        evidence = tuple(_longer(profile))
        found = list(_once(profile))
        if told.part(profile, min(told.idle_of(found), profile.idle)) >= _EXCESS:
            whole = told.of_all(told.together(found))
            begins = f"{whole.idle_for(profile)}, in calls that a program makes at startup"
            yield whole.hit(profile, (*evidence, begins, told.mostly(whole)), self.advice)
        elif evidence:
            yield Hit(evidence=evidence, remedy=self.advice, steps=1)


def _longer(profile: Profile) -> Iterator[str]:
    """The surplus of the first step in words, where it is large."""
    steps = profile.steps
    lengths = [end - start for start, end in zip(steps.start, steps.end, strict=False)]
    if len(lengths) < _STEPS:
        return
    first, others = lengths[0], median(lengths[1:])
    surplus = told.part(profile, first - others)
    if first >= _LONGER * others and surplus >= _EXCESS:
        yield f"the first step takes {duration(first)}, the others {duration(others)} (median)"
        yield f"the excess is {percent(surplus)} of all {len(lengths)} steps"


def _once(profile: Profile) -> Iterator[Spot]:
    """Idleness in loading, capturing and allocating that no second step was seen to repeat."""
    for cause in ("graph", "allocator"):
        if cause == "allocator" and told.saws(profile):
            continue  # GAP401's
        for spot in told.spots(profile, cause):
            if told.between_kernels(spot) or any(name in spot.words for name in _NOT_ONCE):
                continue
            if profile.steps.count == 1 or told.first_only(profile, spot):
                yield spot
