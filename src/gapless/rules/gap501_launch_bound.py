"""GAP501."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent, three_digits
from gapless.rules import _profile as profile_rules
from gapless.rules._optimizers import optimizer_part, optimizer_remedy
from gapless.rules._profile import CostSpot

_MIN_LAUNCHES = 10
"""A trace with fewer launches is too short to judge."""


class LaunchBound(ProfileRule):
    """The CPU launches as fast as it can, and the kernels are shorter than their launches.

    ## What waits
    Each operation of the GPU is launched by the CPU: a few microseconds for Python, a few for PyTorch, a few
    for the driver. If kernels take less than that, the GPU finishes before the next one is launched, and is
    idle until then.

    ## Why it costs
    The step takes as long as its launches, however fast the GPU is. The usual causes are many small
    operations, small batches and optimizers that process one parameter at a time.

    ## Example
    ```python
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    ```

    ## Use instead
    ```python
    model = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    ```
    - `torch.compile` turns many kernels into one, and with `mode="reduce-overhead"` many launches into one
      (a CUDA graph; the shapes must stay the same).
    - `torch.cuda.make_graphed_callables` captures a part of the model without compiling it.
    - A fused optimizer updates many parameters with one kernel.
    - A larger batch makes kernels longer without adding more of them.

    ## When it is fine
    In a step so short that this does not matter, and where the launches are slow only because the
    profiler records Python stacks (GAP702)."""

    code = "GAP501"
    name = "launch-bound"
    advice = (
        'launch less: `torch.compile(model, mode="reduce-overhead")` or CUDA graphs if shapes stay the '
        "same, an optimizer with `fused=True`; or give each launch more work with a larger batch"
    )
    change = profile_rules.LAUNCH_LESS

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = profile_rules.find_spots(profile, "launch")
        if not profile_rules.is_significant(profile, places) or 0 < profile.launches.count < _MIN_LAUNCHES:
            return
        queue = tuple(_describe_queue(profile))
        parts = sorted(_split_places(profile, places), key=lambda part: -part[0].idle)
        for number, (spot, remedy) in enumerate(parts):
            short = f"{spot.idle_for(profile)}, after kernels that end before the next one is launched"
            # The numbers of the queue are of the whole step: they are told once, with what loses most.
            evidence = (short, profile_rules.describe_main_places(spot), *(queue if number == 0 else ()))
            yield spot.hit(profile, evidence, *(remedy or (self.advice,)))


def _split_places(profile: Profile, places: list[CostSpot]) -> Iterator[tuple[CostSpot, tuple[str, ...]]]:
    """Yield the optimizer by kind, which has its own remedies, and all the rest as one, with its remedy.

    Launching is slow in all of a step, and one change of the whole step mends it wherever it is.
    """
    by_kind: dict[str | None, list[CostSpot]] = {}
    for spot in places:
        by_kind.setdefault(optimizer_part(spot.words), []).append(spot)
    rest = by_kind.pop(None, [])
    for kind, own in by_kind.items():
        if (
            profile_rules.share_of_steps(profile, profile_rules.total_idle(own))
            >= profile_rules.MIN_SHARE_OF_PLACE
        ):
            costs = tuple(cost for spot in own for cost in spot.costs)
            yield CostSpot(own[0].site, costs, len(own)), optimizer_remedy(kind or "")
        else:
            rest += own
    rest.sort(key=lambda spot: -spot.idle)
    by_remedy: dict[tuple[str, ...], list[CostSpot]] = {}
    for spot in rest:
        remedy: tuple[str, ...] = profile_rules.ONE_LAUNCH if profile_rules.is_compiled(spot) else ()
        by_remedy.setdefault(remedy, []).append(spot)
    for together, spots in by_remedy.items():
        yield profile_rules.merge_spots(spots), together


def _describe_queue(profile: Profile) -> Iterator[str]:
    """Yield how the CPU feeds the GPU, as far as recorded."""
    launches = profile.launches
    if launches.count > 0:
        number = three_digits(profile_rules.per_step(profile, launches.count))
        shorter = percent(launches.short / launches.count)
        yield (
            f"{number} operations on the GPU {profile_rules.per_step_words(profile)}, {shorter} "
            "shorter than their launches"
        )
    if launches.kernel > 0 and launches.call > 0:
        kernel, call = duration(launches.kernel), duration(launches.call)
        yield f"the median kernel takes {kernel}, the median launch {call}"
    if launches.empty > 0:
        yield f"nothing was queued for the GPU for {percent(launches.empty)} of the time"
