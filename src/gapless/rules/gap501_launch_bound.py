"""GAP501."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gapless.model import Hit, Profile, Rule
from gapless.rules import _profile as told
from gapless.rules._profile import Spot

_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_FILE = re.compile(r"torch/optim/(\w+)\.py")
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
"""Those with `fused=True` on CUDA since torch 2.0 (SGD: 2.3), by the file they are in."""


class LaunchBound(Rule):
    """The host launches as fast as it can, and the kernels are shorter than their launches.

    ## What waits
    Each operation of the GPU is launched by the host: some microseconds for Python, some for PyTorch, some
    for the driver. Where kernels take less than that, the GPU is done before the next one is launched, and is
    idle until then.

    ## Why it costs
    The step takes the time of its launches, however fast the GPU is. Many small operations, small batches and
    optimizers that go from parameter to parameter are the usual causes.

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
    - `torch.compile` makes one kernel of many, and with `mode="reduce-overhead"` one launch of many kernels
      (a CUDA graph; the shapes must stay the same).
    - `torch.cuda.make_graphed_callables` captures a part of the model without compiling it.
    - A fused optimizer updates many parameters with one kernel.
    - A larger batch makes kernels longer and leaves their number as it is.

    ## When it is fine
    In a step so short that it does not matter, and where the launches are slow only because the profiler
    records Python stacks (GAP702).
    """

    code = "GAP501"
    name = "launch-bound"
    advice = (
        'launch less: `torch.compile(model, mode="reduce-overhead")` or CUDA graphs where shapes stay the '
        "same, an optimizer with `fused=True`; or give each launch more to do with a larger batch"
    )

    def find(self, profile: Profile) -> Iterator[Hit]:
        found = told.spots(profile, "launch")
        if not told.matters(profile, found):
            return
        queue = tuple(_queue(profile))
        for number, spot in enumerate(told.told(profile, found) or [told.together(found)]):
            short = f"{spot.idle_for(profile)}, behind kernels that end before the next one is launched"
            # The numbers of the queue are of the whole step: they are told once, with what loses most.
            yield spot.hit(profile, (short, *(queue if number == 0 else ())), _remedy(spot, self.advice))


def _queue(profile: Profile) -> Iterator[str]:
    """How the host feeds the device, as far as it is known."""
    launches = profile.launches
    if launches.count > 0:
        number = told.three_digits(told.per_step(profile, launches.count))
        shorter = told.percent(launches.short / launches.count)
        yield (
            f"{number} operations of the GPU {told.a_step(profile)}, {shorter} of them shorter than the call "
            "that launches them"
        )
    if launches.kernel > 0 and launches.call > 0:
        kernel, call = told.duration(launches.kernel), told.duration(launches.call)
        yield f"the median kernel takes {kernel}, the median launch {call}"
    if told.known(launches.empty) and launches.empty > 0:
        yield f"nothing was queued for the GPU for {told.percent(launches.empty)} of the time"


def _remedy(spot: Spot, advice: str) -> str:
    text = "\n".join(spot.words).replace("\\", "/")
    step, file = _STEP.search(text), _FILE.search(text)
    if step is None and file is None:
        return advice
    name = step.group(1) if step else _OPTIMIZERS.get(file.group(1), "") if file else ""
    if name in _OPTIMIZERS.values():
        return (
            f"`torch.optim.{name}(..., fused=True)` updates many parameters with one kernel; it computes the "
            "same but for rounding"
        )
    return (
        "leave `foreach` at its default (many parameters with one kernel, where the optimizer can), or "
        "compile the update: `step = torch.compile(optimizer.step)`"
    )
