"""GAP502."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, Profile, ProfileRule
from gapless.model.profile import KernelTime
from gapless.model.wording import percent, three_digits
from gapless.rules import _profile as profile_rules

_MIN_UTILIZATION = 0.5
"""Below this utilization idleness matters more: the TensorBoard plugin's bound for low utilization."""
_MAX_FILLED_SHARE = 0.6
"""Share of busy multiprocessors in the busy time, above which kernels are filled well enough."""
_MIN_LOST_SHARE = 0.2
"""Share of the steps that unused multiprocessors must add up to."""
_MAX_KERNELS_NAMED = 3
"""Kernels named in the evidence, the worst first."""
_MAX_NAME_CHARS = 60
"""Longer names of kernels (templates) are cut."""


class UnderFilledKernels(ProfileRule):
    """The GPU is busy with kernels that have fewer blocks than it has multiprocessors.

    ## What waits
    Nothing, which is why it does not show up as idle time: a kernel runs. But its work is divided
    into so few blocks that some multiprocessors get none and have nothing to do until the next
    kernel.

    ## Why it costs
    A kernel with half a block per multiprocessor uses at most half of the GPU, and one with twice the work
    would barely take longer.

    ## Example
    ```python
    outputs = [head(features) for head in heads]
    ```

    ## Use instead
    ```python
    weights = torch.stack([head.weight for head in heads])
    outputs = torch.einsum("bi,hoi->hbo", features, weights)
    ```
    Put small operations of one kind together (`torch.bmm`, `torch.stack`, one wide layer instead of several
    narrow ones), or raise the batch size: there are more blocks, and the step barely takes longer.
    Independent work can also fill the gap on a second stream.

    ## When it is fine
    In inference for one request at a time, where there is nothing to batch."""

    code = "GAP502"
    name = "under-filled-kernels"
    advice = (
        "raise the batch size, or put small operations of one kind together (`torch.bmm`, one wide layer "
        "instead of several narrow ones), so that each multiprocessor gets a block"
    )
    change = "raise the batch size, or batch small operations"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        busy, filled = profile.utilization, profile.sm_efficiency
        if not (
            profile_rules.is_recorded(busy)
            and profile_rules.is_recorded(filled)
            and busy >= _MIN_UTILIZATION
            and filled < _MAX_FILLED_SHARE * busy
        ):
            return
        empty = sorted(
            (kernel for kernel in profile.kernels if _unused_time(kernel) > 0),
            key=lambda kernel: -_unused_time(kernel),
        )
        if profile_rules.share_of_steps(profile, sum(map(_unused_time, empty))) < _MIN_LOST_SHARE:
            return
        yield Hit(
            evidence=(
                f"kernels run for {percent(busy)} of the time, and at most {percent(filled)} of the "
                "multiprocessors' time is used",
                *(_evidence(profile, kernel) for kernel in empty[:_MAX_KERNELS_NAMED]),
            ),
            remedy=self.advice,
            calls=sum(max(kernel.calls, 0) for kernel in empty),
            steps=profile.steps.count,
        )


def _unused_time(kernel: KernelTime) -> float:
    """Return the nanoseconds of the whole GPU that this kernel left unused.

    Kernels of collectives use few blocks on purpose and do not count.
    """
    if (
        kernel.communication
        or not profile_rules.is_recorded(kernel.blocks_per_sm)
        or kernel.blocks_per_sm >= 1
    ):
        return 0.0
    return max(kernel.total, 0) * (1 - kernel.blocks_per_sm)


def _evidence(profile: Profile, kernel: KernelTime) -> str:
    name = kernel.name or "a kernel"
    name = name if len(name) <= _MAX_NAME_CHARS else name[: _MAX_NAME_CHARS - 1] + "…"
    by = f" of {kernel.operator}" if kernel.operator else ""
    return (
        f"{name}{by}: {three_digits(kernel.blocks_per_sm)} blocks per multiprocessor, "
        f"{profile_rules.describe_time(profile, kernel.total)}"
    )
