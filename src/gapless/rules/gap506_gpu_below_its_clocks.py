"""GAP506."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.wording import three_digits

_MIN_SHORT_RATIO, _MIN_PRODUCT_RATIO = 2.0, 1.7
"""How many times as long as on other GPUs of the kind elementwise kernels of few elements and matrix
products must take. Of public profiles of GPUs at their clocks none has more than 1.2 and 1.4, and three of
one that ran at about a third of them have 3.6 and 1.9; ``benchmarks/sheets/estimate.md`` has its speeds."""


class GpuBelowItsClocks(ProfileRule):
    """The GPU takes much longer than others of the same model: it runs below its clocks.

    ## What waits
    Everything. A power limit, heat or locked clocks keep the multiprocessors slow. Whatever depends on the
    clock (starting kernels, arithmetic) takes longer in every kernel; memory-limited kernels slow down less.

    ## Why it costs
    No change to the program makes up for it: at a third of the clocks, a step of large matrix products takes
    up to three times as long.

    ## Example
    ```python
    with torch.profiler.profile(record_shapes=True) as prof:
        train(steps=3)  # on a GPU whose clocks were locked at 420 MHz
    ```

    ## Use instead
    ```python
    subprocess.run(["nvidia-smi", "-rgc"], check=True)  # unlocks the clocks
    train(steps=1000)
    ```
    `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` shows the current and maximum clocks, and what limits them.
    If it is heat, improve the machine's cooling; `nvidia-smi -pl` sets the power limit.

    ## When it is fine
    If several processes share the GPU and each gets a part of its time, or if power is saved on purpose.
    """

    code = "GAP506"
    name = "gpu-below-its-clocks"
    advice = (
        "run `nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` during training to see why: a power limit, heat, "
        "or locked clocks (`nvidia-smi -rgc` unlocks them); the times in this profile are valid only for "
        "this GPU"
    )
    change = "find what slows the GPU: `nvidia-smi -q -d PERFORMANCE`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        efficiency = profile.efficiency
        if efficiency is None or not (
            efficiency.short >= _MIN_SHORT_RATIO and efficiency.products >= _MIN_PRODUCT_RATIO
        ):
            return
        yield Hit(
            evidence=(
                f"this {efficiency.card} runs well below its clocks, or other processes share it: its small "
                f"elementwise kernels take {three_digits(efficiency.short)} times as long as "
                "on others, and its "
                f"matrix products {three_digits(efficiency.products)} times",
            ),
            remedy=self.advice,
            steps=profile.steps.count,
        )
