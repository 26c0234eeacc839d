"""GAP401."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import count, percent, size
from gapless.rules import _memory as held
from gapless.rules import _profile as told


class ReservedMemorySaws(ProfileRule, MemoryRule):
    """Reserved memory falls and rises again and again: it is given back to the driver and taken anew.

    ## What waits
    PyTorch keeps freed memory in a cache. When a request does not fit into what is cached and the driver has
    no more, the whole cache is given back and the request tried again; `torch.cuda.empty_cache()` does the
    same. Giving back waits for all that is queued on the GPU.

    ## Why it costs
    `cudaFree` waits for the GPU and each `cudaMalloc` afterwards takes around a tenth of a millisecond, many
    times what a request costs that the cache can serve. The CPU launches nothing in that time.

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
    - Leave `empty_cache()` out of the loop.
    - Few different sizes fit into each other's places: pad to multiples, or put samples of like length into
      one batch.
    - `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets blocks of any size share one range of addresses.
    - `garbage_collection_threshold:0.8` gives back old blocks before all must go; it works only beside
      `torch.cuda.set_per_process_memory_fraction(0.95)` or another fraction below 1.

    ## When it is fine
    Once between two phases that need blocks of different sizes, such as training and evaluation.
    """

    code = "GAP401"
    name = "reserved-memory-saws"
    advice = (
        "leave `torch.cuda.empty_cache()` out of the loop, set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, and pad variable lengths to few sizes"
    )
    change = "pad to few sizes, no `empty_cache()` in the loop"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        if not told.saws(profile):
            return
        memory = profile.memory
        steps = f" in {count(profile.steps.count, 'step')}" if profile.steps.count > 1 else ""
        fell = (
            f"reserved memory falls {count(memory.drops, 'time')}{steps}: "
            f"{size(memory.given_back)} are given back to the driver and "
            f"{size(memory.taken_again)} taken again"
        )
        found = told.spots(profile, "allocator")
        whole = told.together(found) if found else None
        remedy, change = _remedy(profile, whole.words if whole else "")
        if whole is None:
            yield Hit(evidence=tuple(filter(None, (fell, _room(profile)))), remedy=remedy, change=change)
            return
        evidence = (fell, whole.idle_for(profile), told.called(profile, whole), _room(profile))
        hit = whole.hit(profile, evidence, remedy, change)
        # The place that loses most stands for all: any request may be the one that finds the cache empty.
        yield msgspec.structs.replace(hit, site=found[0].site)

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        steps = held.steady(memory)
        saws = [one for one in steps if one.given and one.taken]
        if len(saws) < held.RECURS or len(saws) < held.OFTEN * len(steps) or memory.baseline.retries:
            return  # retries are GAP406
        calls = sum(one.given + one.taken for one in saws)
        yield Hit(
            evidence=(
                f"memory is given back to the driver and taken again in {len(saws)} of {len(steps)} steady "
                f"steps: {count(calls, 'call')} in all",
            ),
            remedy=told.NO_EMPTY_CACHE[0],
            change=told.NO_EMPTY_CACHE[1],
            calls=calls,
            steps=len(saws),
        )


def _remedy(profile: Profile, words: str) -> tuple[str, str]:
    """What to write instead, also in a few words."""
    few = told.few_sizes(profile)
    if "empty_cache" in words:
        return told.NO_EMPTY_CACHE
    if told.full(profile):
        full = f"the cache is emptied because the GPU's memory is full: {few}, or make the batch smaller"
        return full, "pad to few sizes, or use a smaller batch"
    if profile.gpu_memory > 0 and told.known(profile.memory.peak_reserved):
        return (
            "the GPU's memory was not full, so look for `torch.cuda.empty_cache()` in the loop and leave "
            f"it out; else {few}",
            told.NO_EMPTY_CACHE[1],
        )
    return f"leave `torch.cuda.empty_cache()` out of the loop; else {few}", ""


def _room(profile: Profile) -> str:
    peak = profile.memory.peak_reserved
    if profile.gpu_memory <= 0 or not told.known(peak):
        return ""
    share = percent(peak / profile.gpu_memory)
    return f"at most {size(peak)} are reserved, {share} of the GPU's memory"
