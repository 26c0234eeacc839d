"""GAP701."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration
from gapless.rules import _profile as profile_rules

_MAX_KINDS_NAMED = 2
"""Kinds of overhead named, the longest first."""


class ProfilerOverhead(ProfileRule):
    """The profiler itself took a good part of the steps: without it they are shorter.

    ## What waits
    The CPU, while the profiler records events, fetches its buffers from the driver or sets up kernel
    recording.

    ## Why it costs
    Training itself loses nothing, but the times measured here are longer than without a profiler, and idle
    time caused by the profiler looks like the program's.

    ## Example
    ```python
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as prof:
        train(steps=3)
    ```

    ## Use instead
    ```python
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)
    with torch.profiler.profile(schedule=schedule) as prof:
        train(steps=10, after_each=prof.step)
    ```
    Much of it falls into the first recorded step, and the schedule's warm-up absorbs it. Record stacks,
    memory and shapes only when you need them.

    ## When it is fine
    If only the order of findings matters and not the length of the step."""

    code = "GAP701"
    name = "profiler-overhead"
    advice = (
        "give the profiler a warm-up (`torch.profiler.schedule(wait=5, warmup=2, active=3)`), and record "
        "stacks, memory and shapes only where they are needed"
    )
    change = "give the profiler a warm-up: `schedule(warmup=2)`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        overhead, places = profile.recording.overhead, profile_rules.find_spots(profile, "profiler")
        if (
            not profile_rules.is_significant(profile, places)
            and profile_rules.share_of_steps(profile, overhead) < profile_rules.MIN_SHARE_OF_CAUSE
        ):
            return
        evidence = (
            [f"the profiler itself took {profile_rules.describe_time(profile, overhead)}"]
            if overhead > 0
            else []
        )
        evidence += _describe_kinds(profile)
        if not places:
            yield Hit(evidence=tuple(evidence), remedy=self.advice)
            return
        whole = profile_rules.without_site(profile_rules.merge_spots(places))
        yield whole.hit(profile, (*evidence, whole.idle_for(profile)), self.advice)


def _describe_kinds(profile: Profile) -> Iterator[str]:
    kinds = sorted(profile.recording.overheads.items(), key=lambda kind: -kind[1])[:_MAX_KINDS_NAMED]
    named = [
        f"{name} {duration(profile_rules.per_step(profile, length))}"
        for name, length in kinds
        if name and length > 0
    ]
    if named:
        yield f"most of it: {', '.join(named)} {profile_rules.per_step_words(profile)}"
