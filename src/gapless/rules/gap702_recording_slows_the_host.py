"""GAP702."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as told

_HOST = 0.1
"""The share of the steps that idleness made by the CPU must have before its length is in doubt."""
_MOST = 0.5
"""And of all idleness: below it other causes come first."""


class RecordingSlowsTheHost(ProfileRule):
    """The CPU looks slower than it is, because the profiler recorded each Python call or each allocation.

    ## What waits
    Nothing in the program. With `with_stack=True` the profiler records every Python call and return, with
    `profile_memory=True` every allocation, and the CPU launches kernels later because of that.

    ## Why it costs
    A training loop that keeps the GPU busy can look launch-bound in such a profile. The lines are right, the
    CPU times are too long, and the GPU times are right.

    ## Example
    ```python
    with torch.profiler.profile(with_stack=True, profile_memory=True) as prof:
        train(steps=3)
    ```

    ## Use instead
    ```python
    with torch.profiler.profile() as prof:
        train(steps=3)
    ```
    Record one profile with stacks for the lines, and one without for the times.

    ## When it is fine
    If the idle time has other causes: syncs and late input are as long as they look."""

    code = "GAP702"
    name = "recording-slows-the-host"
    advice = (
        "take a second profile without `with_stack` and `profile_memory`, and use the times from that one "
        "and the lines from this one"
    )
    change = "record again without `with_stack`, `profile_memory`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        options = tuple(_options(profile))
        host = told.idle_of(told.spots(profile, "launch", "host"))
        if not options or told.part(profile, host) < _HOST or host < _MOST * profile.idle:
            return
        events = profile.recording.events_per_step
        many = f", {events:,} events {told.a_step(profile)}" if events > 0 else ""
        yield Hit(
            evidence=(
                f"recorded with {' and '.join(options)}{many}",
                f"the GPU waits for the CPU for {told.of_steps(profile, host)}, and would wait less "
                "without this",
            ),
            remedy=self.advice,
        )


def _options(profile: Profile) -> Iterator[str]:
    """What slows each call or each allocation."""
    recorded = profile.recording
    if recorded.with_stack or recorded.stacks == "call-stack":  # frames may be those of another profile
        yield "`with_stack=True`"
    if recorded.with_memory:
        yield "`profile_memory=True`"
