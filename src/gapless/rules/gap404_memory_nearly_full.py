"""GAP404."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import binary_size, percent, size
from gapless.rules import _memory as memory_rules
from gapless.rules import _profile as profile_rules


class MemoryNearlyFull(ProfileRule, MemoryRule):
    """Tensors use nearly all GPU memory: a slightly larger batch stalls, or ends the run.

    ## What waits
    Nothing yet. When a request no longer fits, the allocator waits for the GPU, returns its cache to the
    driver and tries again; if that is not enough, the run ends out of memory.

    ## Why it costs
    Near the limit, a batch slightly longer than those in the profile stalls the step, and each step after it
    has to refill the cache.

    ## Example
    ```python
    output = model(inputs)
    ```

    ## Use instead
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
    ```
    Activations in half precision take half the memory. Checkpointing keeps fewer of them and recomputes
    them in backward: use it for the parts that hold the most. A smaller batch with gradient accumulation
    gives the same update with less memory, and sharding (FSDP) divides parameters and the optimizer's
    state.

    ## When it is fine
    Where all batches have the same size: what fit once fits again."""

    code = "GAP404"
    name = "memory-nearly-full"
    advice = (
        "leave room for the largest batch: `torch.autocast`, checkpointing of activations, or a smaller "
        "batch with gradient accumulation"
    )
    change = "checkpoint activations, or use a smaller batch"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        allocated = profile.memory.peak_allocated
        if (
            profile.gpu_memory <= 0
            or allocated < profile_rules.FULL_SHARE * profile.gpu_memory
            or profile_rules.is_sawing(profile)
        ):
            return
        share = percent(allocated / profile.gpu_memory)
        whole = size(profile.gpu_memory)
        yield Hit(
            evidence=(f"tensors use at most {size(allocated)} of {whole}, {share}",),
            remedy=self.advice,
        )

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        base, limit = memory.baseline, memory_rules.available_bytes(memory)
        lack = memory.lack
        if lack is not None and (
            memory_rules.is_leaking(memory)
            or any(0 <= graph.needs <= lack.has for graph in memory.unused_graphs)
        ):
            return  # GAP405 or GAP409 says what makes it fit
        if lack is not None and lack.unusable < lack.asked:
            yield Hit(
                evidence=(
                    f"another {binary_size(lack.asked)} do not fit next to {binary_size(lack.allocated)} "
                    f"allocated: the GPU has {binary_size(lack.has)} for this process",
                ),
                remedy=memory_rules.advise_setting(memory) if memory.advised else self.advice,
                site=memory_rules.memory_site(lack.line),
            )
        elif lack is None and limit > 0 and base.peak_allocated >= profile_rules.FULL_SHARE * limit:
            share = percent(base.peak_allocated / limit)
            largest = memory.peak.owners[:1]
            line = largest[0].line if largest else None
            yield Hit(
                evidence=(
                    f"tensors use at most {binary_size(base.peak_allocated)} of {binary_size(limit)}, "
                    f"{share}",
                    *(f"{binary_size(owner.bytes)} of it come from this line" for owner in largest if line),
                ),
                remedy=self.advice,
                site=memory_rules.memory_site(line),
            )
