"""GAP702."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.rules import _profile as profile_rules

_MIN_SHARE_OF_STEPS = 0.1
"""Share of the steps that idleness caused by the CPU must have before its length is in doubt."""
_MIN_SHARE_OF_IDLE = 0.5
"""Share of all idleness it must have: below, other causes come first."""


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
        options = tuple(_slowing_options(profile))
        host = profile_rules.total_idle(profile_rules.find_spots(profile, "launch", "host"))
        if (
            not options
            or profile_rules.share_of_steps(profile, host) < _MIN_SHARE_OF_STEPS
            or host < _MIN_SHARE_OF_IDLE * profile.idle
        ):
            return
        events = profile.recording.events_per_step
        many = f", {events:,} events {profile_rules.per_step_words(profile)}" if events > 0 else ""
        yield Hit(
            evidence=(
                f"recorded with {' and '.join(options)}{many}",
                f"the GPU waits for the CPU for {profile_rules.describe_time(profile, host)}, "
                "and would wait less "
                "without this",
            ),
            remedy=self.advice,
        )


def _slowing_options(profile: Profile) -> Iterator[str]:
    """Yield the options that slow each call or each allocation."""
    recorded = profile.recording
    if recorded.with_stack or recorded.stacks == "call-stack":  # frames may be those of another profile
        yield "`with_stack=True`"
    if recorded.with_memory:
        yield "`profile_memory=True`"
