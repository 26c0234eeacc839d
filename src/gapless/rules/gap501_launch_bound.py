"""GAP501."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent, three_digits
from gapless.rules import _profile as profile_rules
from gapless.rules._profile import CostSpot

_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_ZEROING = "zero_grad"
_OPTIMIZER_FILE = re.compile(r"torch/optim/(?!lr_scheduler|swa_utils)(\w+)\.py")
_FUSED_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
"""Optimizers with `fused=True` on CUDA since torch 2.0 (SGD: 2.3), by the name of their file."""

_FOREACH_OPTIMIZERS = {
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""Optimizers of `torch.optim` that take `foreach`."""
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
    change = '`torch.compile(mode="reduce-overhead")`, or CUDA graphs'

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        places = profile_rules.find_spots(profile, "launch")
        if not profile_rules.is_significant(profile, places) or 0 < profile.launches.count < _MIN_LAUNCHES:
            return
        queue = tuple(_describe_queue(profile))
        parts = sorted(_split_places(profile, places), key=lambda part: -part[0].idle)
        for number, (spot, kind) in enumerate(parts):
            short = f"{spot.idle_for(profile)}, after kernels that end before the next one is launched"
            # The numbers of the queue are of the whole step: they are told once, with what loses most.
            evidence = (short, profile_rules.describe_main_places(spot), *(queue if number == 0 else ()))
            yield spot.hit(profile, evidence, *(_remedy(spot, kind) or (self.advice,)))


def _split_places(profile: Profile, places: list[CostSpot]) -> Iterator[tuple[CostSpot, str | None]]:
    """Yield the optimizer by kind, which has its own remedies, costly lines by themselves, and the rest.

    Launching is slow in all of a step or nowhere: a small place, or an operator without a line, says nothing.
    """
    by_kind: dict[str | None, list[CostSpot]] = {}
    for spot in places:
        by_kind.setdefault(_optimizer_part(spot), []).append(spot)
    rest = by_kind.pop(None, [])
    for kind, own in by_kind.items():
        if (
            profile_rules.share_of_steps(profile, profile_rules.total_idle(own))
            >= profile_rules.MIN_SHARE_OF_PLACE
        ):
            costs = tuple(cost for spot in own for cost in spot.costs)
            yield CostSpot(own[0].site, costs, len(own)), kind
        else:
            rest += own
    rest.sort(key=lambda spot: -spot.idle)
    if rest:
        for spot in profile_rules.spots_to_report(
            profile, rest, least=profile_rules.MIN_SHARE_OF_CAUSE, unknown=2
        ):
            yield spot, None


def _optimizer_part(spot: CostSpot) -> str | None:
    """Return what of an optimizer launches here: its class name if it steps, "" if the class is unknown,
    or ``zero_grad``; None if no optimizer does."""
    step, file = _OPTIMIZER_STEP.search(spot.words), _OPTIMIZER_FILE.search(spot.words)
    if step:
        return step.group(1)
    if _ZEROING in spot.words:
        return _ZEROING
    return _FUSED_OPTIMIZERS.get(file.group(1), "") if file else None


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


def _remedy(spot: CostSpot, kind: str | None) -> tuple[str, ...]:
    """Return what to write instead, also in a few words; () if the general advice suffices."""
    if kind == _ZEROING:
        return (
            "`optimizer.zero_grad(set_to_none=True)`, the default since torch 2.0, launches nothing: it "
            "drops the gradients instead of filling them with zeros",
            "`zero_grad(set_to_none=True)`",
        )
    if kind in _FUSED_OPTIMIZERS.values():
        return (
            f"`torch.optim.{kind}(..., fused=True)` updates many parameters with one kernel; the results "
            "differ only by rounding",
            f"`torch.optim.{kind}(..., fused=True)`",
        )
    if kind and kind not in _FOREACH_OPTIMIZERS:
        return (
            "your own optimizer launches kernels for each parameter: use the `torch._foreach_…` "
            "functions, or compile the update (`step = torch.compile(optimizer.step)`)",
            "compile the update: `step = torch.compile(optimizer.step)`",
        )
    if kind is not None:
        return (
            "keep `foreach` at its default (many parameters with one kernel, if the optimizer supports "
            "it), or compile the update: `step = torch.compile(optimizer.step)`",
            "keep the optimizer's `foreach` at its default",
        )
    return profile_rules.ONE_LAUNCH if profile_rules.is_compiled(spot) else ()
