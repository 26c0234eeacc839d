"""GAP401: cached memory given back to the driver and requested again, over and over."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import count, percent, size
from gapless.rules import _memory as memory_rules
from gapless.rules import _profile as profile_rules


class ReservedMemorySaws(ProfileRule, MemoryRule):
    """Reserved memory falls and rises again and again: it is returned to the driver and requested again.

    ## What waits
    PyTorch keeps freed memory in a cache. When a request does not fit into a cached block and the driver has
    no more memory, the whole cache is returned and the request is tried again; `torch.cuda.empty_cache()`
    does the same. Returning memory waits for everything queued on the GPU.

    ## Why it costs
    `cudaFree` waits for the GPU and each `cudaMalloc` afterwards takes around a tenth of a millisecond, many
    times the cost of a request that the cache can serve. The CPU launches nothing in that time.

    ## Example
    ```python
    for batch in loader:
        train_step(pad_sequence(batch, batch_first=True).to(device))
        torch.cuda.empty_cache()
    ```

    ## Use instead
    ```python
    for batch in loader:
        tokens = pad_sequence(batch, batch_first=True)
        length = -(-tokens.shape[1] // 128) * 128
        train_step(F.pad(tokens, (0, length - tokens.shape[1])).to(device))
    ```
    - Remove `empty_cache()` from the loop.
    - With few different sizes, blocks can be reused: pad to multiples, or batch samples of similar length.
    - `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets blocks of any size share one range of addresses.
    - `garbage_collection_threshold:0.8` returns old blocks before everything must go; it works only
      together with `torch.cuda.set_per_process_memory_fraction(0.95)` or another fraction below 1.

    ## When it is fine
    Once between two phases that need blocks of different sizes, such as training and evaluation.
    """

    code = "GAP401"
    name = "reserved-memory-saws"
    advice = (
        "remove `torch.cuda.empty_cache()` from the loop, set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and pad variable lengths to a few sizes"
    )
    change = "pad to a few sizes, no `empty_cache()` in the loop"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        if not profile_rules.is_sawing(profile):
            return
        memory = profile.memory
        steps = f" in {count(profile.steps.count, 'step')}" if profile.steps.count > 1 else ""
        fell = (
            f"reserved memory falls {count(memory.drops, 'time')}{steps}: {size(memory.given_back)} are "
            f"returned to the driver and {size(memory.taken_again)} requested again"
        )
        places = profile_rules.find_spots(profile, "allocator")
        whole = profile_rules.merge_spots(places) if places else None
        remedy, change = _remedy(profile, whole.words if whole else "")
        if whole is None:
            yield Hit(
                evidence=tuple(filter(None, (fell, _describe_peak(profile)))), remedy=remedy, change=change
            )
            return
        evidence = (
            fell,
            whole.idle_for(profile),
            profile_rules.describe_calls(profile, whole),
            _describe_peak(profile),
        )
        hit = whole.hit(profile, evidence, remedy, change)
        # The place that loses most stands for all: any request may be the one that finds the cache empty.
        yield msgspec.structs.replace(hit, site=places[0].site)

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        steps = memory_rules.steady_steps(memory)
        saws = [step for step in steps if step.given and step.taken]
        if (
            len(saws) < memory_rules.MIN_RECURRENCES
            or len(saws) < memory_rules.MIN_RECURRING_SHARE * len(steps)
            or memory.baseline.retries
        ):
            return  # retries are GAP406
        calls = sum(step.given + step.taken for step in saws)
        yield Hit(
            evidence=(
                f"memory is returned to the driver and requested again in {len(saws)} of {len(steps)} "
                f"steady steps: {count(calls, 'call')} in all",
            ),
            remedy=profile_rules.NO_EMPTY_CACHE[0],
            change=profile_rules.NO_EMPTY_CACHE[1],
            calls=calls,
            steps=len(saws),
        )


def _remedy(profile: Profile, words: str) -> tuple[str, str]:
    """Return what to write instead, also in a few words."""
    few = profile_rules.advise_few_sizes(profile)
    if "empty_cache" in words:
        return profile_rules.NO_EMPTY_CACHE
    if profile_rules.is_full(profile):
        full = f"the cache is emptied because the GPU's memory is full: {few}, or make the batch smaller"
        return full, "pad to a few sizes, or use a smaller batch"
    if profile.gpu_memory > 0 and profile_rules.is_recorded(profile.memory.peak_reserved):
        return (
            "the GPU's memory was not full, so look for `torch.cuda.empty_cache()` in the loop and remove "
            f"it; otherwise {few}",
            profile_rules.NO_EMPTY_CACHE[1],
        )
    return f"remove `torch.cuda.empty_cache()` from the loop; otherwise {few}", ""


def _describe_peak(profile: Profile) -> str:
    peak = profile.memory.peak_reserved
    if profile.gpu_memory <= 0 or not profile_rules.is_recorded(peak):
        return ""
    share = percent(peak / profile.gpu_memory)
    return f"at most {size(peak)} are reserved, {share} of the GPU's memory"
