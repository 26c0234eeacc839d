"""GAP501."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import duration, percent, three_digits
from gapless.rules import _profile as told
from gapless.rules._profile import Spot

_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_ZEROING = "zero_grad"
_FILE = re.compile(r"torch/optim/(?!lr_scheduler|swa_utils)(\w+)\.py")
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
"""Those with `fused=True` on CUDA since torch 2.0 (SGD: 2.3), by the file they are in."""

_FOREACH = {
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""Those of `torch.optim` that take `foreach`."""
_FEW = 10
"""Fewer launches than this in a trace say nothing of how it goes on."""


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
        found = told.spots(profile, "launch")
        if not told.matters(profile, found) or 0 < profile.launches.count < _FEW:
            return
        queue = tuple(_queue(profile))
        parts = sorted(_parts(profile, found), key=lambda part: -part[0].idle)
        for number, (spot, kind) in enumerate(parts):
            short = f"{spot.idle_for(profile)}, after kernels that end before the next one is launched"
            # The numbers of the queue are of the whole step: they are told once, with what loses most.
            evidence = (short, told.mostly(spot), *(queue if number == 0 else ()))
            yield spot.hit(profile, evidence, *(_remedy(spot, kind) or (self.advice,)))


def _parts(profile: Profile, found: list[Spot]) -> Iterator[tuple[Spot, str | None]]:
    """The optimizer by kind, which has remedies of its own, lines that lose much by themselves, and the rest.

    Launching is slow in all of a step or nowhere: a small place or an operator without a line tells nothing.
    """
    by_kind: dict[str | None, list[Spot]] = {}
    for spot in found:
        by_kind.setdefault(_optimizer(spot), []).append(spot)
    others = by_kind.pop(None, [])
    for kind, own in by_kind.items():
        if told.part(profile, told.idle_of(own)) >= told.SMALL:
            costs = tuple(cost for spot in own for cost in spot.costs)
            yield Spot(own[0].site, costs, len(own)), kind
        else:
            others += own
    others.sort(key=lambda spot: -spot.idle)
    if others:
        for spot in told.told(profile, others, least=told.MATTERS, unknown=2):
            yield spot, None


def _optimizer(spot: Spot) -> str | None:
    """The optimizer that launches here: its name, "" where that is not known, None where it is none."""
    step, file = _STEP.search(spot.words), _FILE.search(spot.words)
    if step:
        return step.group(1)
    if _ZEROING in spot.words:
        return _ZEROING
    return _OPTIMIZERS.get(file.group(1), "") if file else None


def _queue(profile: Profile) -> Iterator[str]:
    """How the CPU feeds the GPU, as far as it is known."""
    launches = profile.launches
    if launches.count > 0:
        number = three_digits(told.per_step(profile, launches.count))
        shorter = percent(launches.short / launches.count)
        yield f"{number} operations on the GPU {told.a_step(profile)}, {shorter} shorter than their launches"
    if launches.kernel > 0 and launches.call > 0:
        kernel, call = duration(launches.kernel), duration(launches.call)
        yield f"the median kernel takes {kernel}, the median launch {call}"
    if launches.empty > 0:
        yield f"nothing was queued for the GPU for {percent(launches.empty)} of the time"


def _remedy(spot: Spot, kind: str | None) -> tuple[str, ...]:
    """What to write instead, also in a few words; nothing where the general advice says all."""
    if kind == _ZEROING:
        return (
            "`optimizer.zero_grad(set_to_none=True)`, the default since torch 2.0, launches nothing: it "
            "drops the gradients instead of filling them with zeros",
            "`zero_grad(set_to_none=True)`",
        )
    if kind in _OPTIMIZERS.values():
        return (
            f"`torch.optim.{kind}(..., fused=True)` updates many parameters with one kernel; the results "
            "differ only by rounding",
            f"`torch.optim.{kind}(..., fused=True)`",
        )
    if kind and kind not in _FOREACH:
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
    return told.ONE_LAUNCH if told.compiled(spot) else ()
