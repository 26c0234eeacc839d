"""GAP707."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule


class RecordsMissing(ProfileRule):
    """Part of what the GPU or the CPU did is not in the file, for example launches without their kernels.

    ## What waits
    Nothing. The profiler ran out of buffers, it was stopped before the GPU had finished, several processes
    wrote into one file, or the file was damaged afterwards.

    ## Why it costs
    A GPU that works but is not recorded looks idle. Below 95 % of the records, no idle time is reported,
    nothing is priced, and gates end with status 3.

    ## Example
    ```python
    with torch.profiler.profile() as prof:
        train(steps=5000)
    ```

    ## Use instead
    ```python
    schedule = torch.profiler.schedule(wait=5, warmup=2, active=3)
    with torch.profiler.profile(schedule=schedule) as prof:
        for inputs, labels in loader:
            train_step(inputs, labels)
            prof.step()
    ```
    Let the GPU finish (`torch.cuda.synchronize()`) before the profiler stops, and write one file per process.

    ## When it is fine
    Never for numbers; the syncs found may still be true."""

    code = "GAP707"
    name = "records-missing"
    advice = "record fewer steps at once, with a schedule, and write one file per process"
    change = "record fewer steps at once"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        held = profile.coverage
        if not held.complete and not profile.recording.truncated:
            yield Hit(evidence=(held.reason,), remedy=held.remedy)
