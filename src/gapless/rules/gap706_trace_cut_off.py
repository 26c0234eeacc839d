"""GAP706."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import count


class TraceCutOff(ProfileRule):
    """The file is truncated: what the profiler would have written after that point is missing.

    ## What waits
    Nothing. The process ended, or the disk was full, before the trace was written to its end.

    ## Why it costs
    The end of the file is not the end of the time: a trace is not written in order, so kernels, stacks or
    whole steps can be missing, and the calls that launched them look as if they had waited for nothing.

    ## Example
    ```python
    prof.start()
    train(steps=3)
    os._exit(0)
    ```

    ## Use instead
    ```python
    with torch.profiler.profile() as prof:
        train(steps=3)
    prof.export_chrome_trace("trace.json.gz")
    ```
    Let the process end normally after the trace is written, and record fewer steps if writing takes long.

    ## When it is fine
    Never for numbers; the findings may still be true."""

    code = "GAP706"
    name = "trace-cut-off"
    advice = (
        "record again, and keep the process alive until the trace is written; fewer steps are written faster"
    )
    change = "record again, and wait until the trace is written"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        if profile.recording.truncated:
            steps = profile.steps
            held = "no steps" if steps.source == "span" else count(steps.count, "step")
            yield Hit(evidence=(f"the file is truncated: it contains {held}",), remedy=self.advice)
