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
    Nothing of the program. With `with_stack=True` the profiler notes every call and return of Python, with
    `profile_memory=True` every allocation, and the CPU launches later for it.

    ## Why it costs
    A training that keeps the GPU busy by itself can look launch-bound in such a profile. The lines are right,
    the times on the CPU are too long, and those on the GPU are right again.

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
    Take one profile with stacks, to see the lines, and one without, to see the times.

    ## When it is fine
    Where the idleness has other causes: syncs and a late input are as long as they look.
    """

    code = "GAP702"
    name = "recording-slows-the-host"
    advice = (
        "take a second profile without `with_stack` and `profile_memory`, and believe the times of that one "
        "and the lines of this one"
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
                f"the GPU waits for the CPU for {told.of_steps(profile, host)}, and for less without this",
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
