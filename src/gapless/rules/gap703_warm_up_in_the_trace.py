"""GAP703."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent
from gapless.rules import _profile as profile_rules
from gapless.rules._profile import CostSpot

_MIN_LENGTH_RATIO = 1.5
"""How many times longer than the others the first step must be."""
_MIN_EXCESS_SHARE = 0.1
"""Share of the trace that the excess must have to change the numbers."""
_REPEATED_CALLS = ("GraphLaunch", "Synchronize")
"""Parts of the names of long calls that a program makes in every step."""
_MIN_STEPS = 3
"""With fewer steps the usual length is unknown."""


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
        evidence = tuple(_describe_first_step(profile))
        places = list(_startup_places(profile))
        if (
            profile_rules.share_of_steps(profile, min(profile_rules.total_idle(places), profile.idle))
            >= _MIN_EXCESS_SHARE
        ):
            whole = profile_rules.without_site(profile_rules.merge_spots(places))
            begins = f"{whole.idle_for(profile)}, in calls that a program makes at startup"
            yield whole.hit(
                profile, (*evidence, begins, profile_rules.describe_main_places(whole)), self.advice
            )
        elif evidence:
            yield Hit(evidence=evidence, remedy=self.advice, steps=1)


def _describe_first_step(profile: Profile) -> Iterator[str]:
    """Yield the excess of the first step, if it is large."""
    steps = profile.steps
    lengths = [end - start for start, end in zip(steps.start, steps.end, strict=False)]
    if len(lengths) < _MIN_STEPS:
        return
    first, usual = lengths[0], median(lengths[1:])
    surplus = profile_rules.share_of_steps(profile, first - usual)
    if first >= _MIN_LENGTH_RATIO * usual and surplus >= _MIN_EXCESS_SHARE:
        yield f"the first step takes {duration(first)}, the others {duration(usual)} (median)"
        yield f"the excess is {percent(surplus)} of all {len(lengths)} steps"


def _startup_places(profile: Profile) -> Iterator[CostSpot]:
    """Yield idleness in loading, capturing and allocating that no second step repeated."""
    for cause in ("graph", "allocator"):
        if cause == "allocator" and profile_rules.is_sawing(profile):
            continue  # GAP401's
        for spot in profile_rules.find_spots(profile, cause):
            if profile_rules.is_between_kernels(spot) or any(name in spot.words for name in _REPEATED_CALLS):
                continue
            if profile.steps.count == 1 or profile_rules.is_first_step_only(profile, spot):
                yield spot
