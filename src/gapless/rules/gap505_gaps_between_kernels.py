"""GAP505."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, three_digits
from gapless.rules import _profile as profile_rules


class GapsBetweenKernels(ProfileRule):
    """The step has so many kernels that the pauses between them add up, though all were queued in time.

    ## What waits
    Nothing. Between two kernels of one stream the GPU needs one to two microseconds before the next
    begins, even if it was launched long before.

    ## Why it costs
    For kernels of a few microseconds, these pauses are a large part of the step. Neither launching earlier
    nor removing syncs makes them shorter: only fewer kernels do.

    ## Example
    ```python
    for parameter, average in zip(model.parameters(), averages):
        average.mul_(0.999).add_(parameter.detach(), alpha=0.001)
    ```

    ## Use instead
    ```python
    parameters = [parameter.detach() for parameter in model.parameters()]
    torch._foreach_lerp_(averages, parameters, 0.001)
    ```
    `torch.compile` fuses consecutive kernels into one. Optimizers have `fused=True`. A larger batch makes
    kernels longer without adding more of them, and so without adding pauses.

    ## When it is fine
    If there are as few kernels as possible."""

    code = "GAP505"
    name = "gaps-between-kernels"
    advice = (
        "run fewer and longer kernels: `torch.compile`, an optimizer with `fused=True`, `torch._foreach_*` "
        "for lists of tensors, a larger batch"
    )
    change = "fuse kernels: `torch.compile`, `fused=True`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = [
            spot
            for spot in profile_rules.find_spots(profile, "graph")
            if profile_rules.is_between_kernels(spot)
        ]
        if not profile_rules.is_significant(profile, places):
            return
        whole = profile_rules.merge_spots(places)
        yield whole.hit(
            profile,
            (
                f"{whole.idle_for(profile)}, between operations that had been launched in time",
                _describe_gaps(profile, sum(cost.stretches for cost in whole.costs), whole.idle),
            ),
            self.advice,
        )


def _describe_gaps(profile: Profile, gaps: int, idle: int) -> str:
    if gaps <= 0:
        return ""
    number = three_digits(profile_rules.per_step(profile, gaps))
    return (
        f"{number} such gaps {profile_rules.per_step_words(profile)}, {duration(idle / gaps)} each on average"
    )
