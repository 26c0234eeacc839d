"""GAP704."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration
from gapless.rules import _profile as told

_IDLE = 0.1
"""Where the GPU is idle for less than this of the trace, no step could change the picture."""


class NoStepsMarked(ProfileRule):
    """Nothing in the trace says where a step begins: all numbers are of the whole of it, set-up included.

    ## What waits
    Nothing. The profiler was not told of the steps, and no optimizer is in the trace to tell by.

    ## Why it costs
    What happens once cannot be told from what happens in each step, and idleness before and after the loop
    counts with that in it.

    ## Example
    ```python
    with torch.profiler.profile() as prof:
        train(steps=3)
    ```

    ## Use instead
    ```python
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)
    with torch.profiler.profile(schedule=schedule) as prof:
        for inputs, labels in loader:
            train_step(inputs, labels)
            prof.step()
    ```

    ## When it is fine
    Where the trace is of one call and not of a loop.
    """

    code = "GAP704"
    name = "no-steps-marked"
    advice = (
        "call `prof.step()` at the end of each step, with a schedule: "
        "`torch.profiler.schedule(wait=5, warmup=2, active=3)`"
    )
    change = "call `prof.step()` at the end of each step"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        works = profile.utilization > 0 or profile.launches.count > 0 or bool(profile.kernels)
        if profile.steps.source != "span" or not works or told.part(profile, profile.idle) < _IDLE:
            return
        yield Hit(
            evidence=(f"all numbers are of the whole {duration(profile.steps.total)}, set-up included",),
            remedy=self.advice,
        )
