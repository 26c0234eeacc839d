"""GAP506."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import three_digits

_SHORT, _PRODUCTS = 2.0, 1.7
"""How many times as long as on other GPUs of the kind elementwise kernels of few elements and matrix
products must take. Of public profiles of GPUs at their clocks none has more than 1.2 and 1.4, and three of
one that ran at about a third of them have 3.6 and 1.9 (``benchmarks/sheets/estimate.md``)."""


class GpuBelowItsClocks(ProfileRule):
    """The GPU takes a multiple of what others of its kind take: it runs below its clocks.

    ## What waits
    Everything. A power limit, heat, or clocks that somebody locked keep the multiprocessors slow. What goes
    with the clock, the start of a kernel and arithmetic, takes longer in all kernels alike; what
    memory limits takes longer by less.

    ## Why it costs
    No change of the program makes up for it: at a third of the clocks a step of large products takes up to
    three times as long.

    ## Example
    ```python
    with torch.profiler.profile(record_shapes=True) as prof:
        train(steps=3)  # on a GPU whose clocks somebody left at 420 MHz
    ```

    ## Use instead
    ```python
    subprocess.run(["nvidia-smi", "-rgc"], check=True)  # gives up locked clocks
    train(steps=1000)
    ```
    `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` shows the clocks, now and at most, and what holds them down.
    Against heat, look after the machine's cooling; a power limit is set by `nvidia-smi -pl`.

    ## When it is fine
    Where several processes share the GPU, each of which gets a part of its time, or where power is saved on
    purpose.
    """

    code = "GAP506"
    name = "gpu-below-its-clocks"
    advice = (
        "look with `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` while it trains: a power limit, heat, or "
        "locked clocks (`nvidia-smi -rgc` gives them up); times of this profile hold for this GPU alone"
    )
    change = "find what slows the GPU: `nvidia-smi -q -d PERFORMANCE`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        found = profile.efficiency
        if found is None or not (found.short >= _SHORT and found.products >= _PRODUCTS):
            return
        yield Hit(
            evidence=(
                f"this {found.card} runs well below its clocks: its elementwise kernels of few elements take "
                f"{three_digits(found.short)} times as long as on others, its matrix products "
                f"{three_digits(found.products)} times",
            ),
            remedy=self.advice,
            steps=profile.steps.count,
        )
