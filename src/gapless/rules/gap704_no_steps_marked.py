"""GAP704."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration
from gapless.rules import _profile as profile_rules

_MIN_IDLE_SHARE = 0.1
"""If the GPU is idle for less of the trace, marking steps would not change the picture."""


class NoStepsMarked(ProfileRule):
    """Nothing in the trace marks where a step begins: all numbers cover the whole trace, including set-up.

    ## What waits
    Nothing. The profiler was not told about steps, and the trace contains no optimizer to recognize them by.

    ## Why it costs
    One-time events cannot be distinguished from events in each step, and idle time before and after the
    loop is counted together with idle time inside it.

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
    If the trace covers a single call and not a loop."""

    code = "GAP704"
    name = "no-steps-marked"
    advice = (
        "call `prof.step()` at the end of each step, with a schedule: "
        "`torch.profiler.schedule(wait=5, warmup=2, active=3)`"
    )
    change = "call `prof.step()` at the end of each step"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        works = profile.utilization > 0 or profile.launches.count > 0 or bool(profile.kernels)
        if (
            profile.steps.source != "span"
            or not works
            or profile_rules.share_of_steps(profile, profile.idle) < _MIN_IDLE_SHARE
        ):
            return
        yield Hit(
            evidence=(f"all numbers cover the whole {duration(profile.steps.total)}, including set-up",),
            remedy=self.advice,
        )
