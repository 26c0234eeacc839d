"""GAP705."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as profile_rules


class NoStacksRecorded(ProfileRule):
    """The trace has no Python stacks: findings name operators instead of lines.

    ## What waits
    Nothing. The profiler records Python stacks only on request.

    ## Why it costs
    The same operator appears in a hundred places of a program, and only the stack shows which one made
    the GPU idle.

    ## Example
    ```python
    with torch.profiler.profile() as prof:
        train(steps=3)
    ```

    ## Use instead
    ```python
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, with_stack=True) as prof:
        train(steps=3)
    ```
    The CPU must be among the activities. Stacks slow the CPU down (GAP702) and make the file larger: a few
    steps are enough. Inside code compiled with `torch.compile` there are no Python frames to record. For a
    few functions, `gapless.annotate(loss_function)` marks their lines in the trace without stacks and
    without editing them.

    ## When it is fine
    If the operators are informative enough."""

    code = "GAP705"
    name = "no-stacks-recorded"
    advice = "record a few steps with `with_stack=True` (and the CPU among the activities) to see the lines"
    change = "record a few steps with `with_stack=True`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        if profile.recording.stacks:
            return
        places = profile_rules.find_spots(profile, "wait", "launch", "host", "allocator", "graph")
        unknown = [
            spot
            for spot in places
            if spot.site is not None and spot.site.line is None and not profile_rules.is_between_kernels(spot)
        ]
        if not profile_rules.is_significant(profile, unknown):
            return
        idle = profile_rules.describe_time(profile, min(profile_rules.total_idle(unknown), profile.idle))
        where = f"at {len(unknown)} places" if len(unknown) > 1 else "at one place"
        yield Hit(evidence=(f"the GPU idles {idle}, {where} whose line is unknown",), remedy=self.advice)
