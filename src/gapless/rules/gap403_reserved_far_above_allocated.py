"""GAP403."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, percent, size
from gapless.rules import _memory as memory_rules
from gapless.rules import _profile as profile_rules

_MIN_UNUSED_SHARE = 0.1
"""Share of the GPU's memory that must be idle in the cache to be worth a change of settings."""


class ReservedFarAboveAllocated(ProfileRule, MemoryRule):
    """Nearly all GPU memory is reserved although tensors use much less of it: the cache is fragmented.

    ## What waits
    Nothing yet. When a request fits into no free block and the driver has no more, the allocator waits for
    the GPU, returns the whole cache and tries again; if that is not enough either, the run ends out of
    memory, although enough is free in pieces.

    ## Why it costs
    Fragmented memory cannot be used for a larger batch, and each emptying of the cache costs a sync and
    the allocations after it.

    ## Example
    ```python
    for batch in loader:
        train_step(pad_sequence(batch, batch_first=True).to(device))
    ```

    ## Use instead
    ```python
    import os

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch
    ```
    The variable must be set before the first allocation, best in the shell. Fewer different sizes also help:
    pad lengths to multiples, or run the largest batch first.

    ## When it is fine
    Where the run keeps its speed and memory neither grows nor runs out: a full cache is normal."""

    code = "GAP403"
    name = "reserved-far-above-allocated"
    advice = (
        "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad variable lengths to a few sizes, or "
        "run the largest batch first"
    )
    change = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        memory = profile.memory
        if (
            not profile_rules.is_full(profile)
            or profile_rules.is_sawing(profile)
            or not profile_rules.is_recorded(memory.peak_allocated)
        ):
            return
        apart = memory.peak_reserved - memory.peak_allocated
        if apart < _MIN_UNUSED_SHARE * profile.gpu_memory:
            return
        share = percent(memory.peak_reserved / profile.gpu_memory)
        yield Hit(
            evidence=(
                f"at most {size(memory.peak_reserved)} are reserved, {share} of the GPU's memory",
                f"tensors use at most {size(memory.peak_allocated)}: {size(apart)} less",
            ),
            remedy=profile_rules.advise_few_sizes(profile) + ", or run the largest batch first",
        )

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        base, lack = memory.baseline, memory.lack
        if lack is not None and lack.unusable >= lack.asked:
            yield Hit(
                evidence=(
                    f"another {binary_size(lack.asked)} cannot be allocated next to "
                    f"{binary_size(lack.allocated)}, although {binary_size(lack.unusable)} are cached, in "
                    f"pieces of at most {binary_size(lack.largest)}",
                ),
                remedy=memory_rules.advise_setting(memory),
                site=memory_rules.memory_site(lack.line),
            )
            return
        apart = base.peak_reserved - base.peak_allocated
        limit = memory_rules.available_bytes(memory)
        if (
            lack is not None
            or limit <= 0
            or base.retries
            or base.peak_reserved < profile_rules.FULL_SHARE * limit
        ):
            return
        if apart >= _MIN_UNUSED_SHARE * limit:
            yield Hit(
                evidence=(
                    f"at most {binary_size(base.peak_reserved)} are reserved, "
                    f"{percent(base.peak_reserved / limit)} of what the GPU has for this process",
                    f"tensors use at most {binary_size(base.peak_allocated)}: {binary_size(apart)} less",
                ),
                remedy=memory_rules.advise_setting(memory),
            )
