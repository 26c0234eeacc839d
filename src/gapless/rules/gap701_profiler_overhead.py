"""GAP701."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration
from gapless.rules import _profile as told

_NAMED = 2


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
        overhead, found = profile.recording.overhead, told.spots(profile, "profiler")
        if not told.matters(profile, found) and told.part(profile, overhead) < told.MATTERS:
            return
        evidence = [f"the profiler itself took {told.of_steps(profile, overhead)}"] if overhead > 0 else []
        evidence += _kinds(profile)
        if not found:
            yield Hit(evidence=tuple(evidence), remedy=self.advice)
            return
        whole = told.of_all(told.together(found))
        yield whole.hit(profile, (*evidence, whole.idle_for(profile)), self.advice)


def _kinds(profile: Profile) -> Iterator[str]:
    kinds = sorted(profile.recording.overheads.items(), key=lambda kind: -kind[1])[:_NAMED]
    named = [
        f"{name} {duration(told.per_step(profile, length))}" for name, length in kinds if name and length > 0
    ]
    if named:
        yield f"most of it: {', '.join(named)} {told.a_step(profile)}"
