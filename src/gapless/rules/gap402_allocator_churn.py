"""GAP402."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.model import Hit, MemoryRule, Profile, ProfileRule
from gapless.model.memory_report import MemoryReport
from gapless.model.wording import count
from gapless.rules import _memory as memory_rules
from gapless.rules import _profile as profile_rules
from gapless.rules._profile import CostSpot

_GIVE_BACK = ("free", "unmap", "release")
_PINNED = ("hostalloc", "hostmalloc", "mallochost", "hostregister")


class AllocatorChurn(ProfileRule, MemoryRule):
    """Memory is requested from the driver in every step, although the cache should hold it by then.

    ## What waits
    `cudaMalloc`, `cudaHostAlloc` and similar calls block the CPU for a tenth of a millisecond to several
    milliseconds; `cudaFree` waits for the GPU as well. A request that PyTorch's cache can serve takes a few
    microseconds and none of these calls.

    ## Why it costs
    If all steps are alike, the cache holds all blocks after a few steps. If sizes change from step to
    step, cached blocks do not fit; new ones are requested and old ones returned.

    ## Example
    ```python
    for batch in loader:
        train_step(pad_sequence(batch, batch_first=True).to(device))
    ```

    ## Use instead
    ```python
    for batch in loader:
        tokens = pad_sequence(batch, batch_first=True)
        length = -(-tokens.shape[1] // 128) * 128
        train_step(F.pad(tokens, (0, length - tokens.shape[1])).to(device))
    ```
    A few sizes are soon all cached. Without a change to the code,
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` places blocks of different sizes in one address
    range. A first step at the maximum length makes most later ones fit. Allocate your own pinned buffers
    once, before the loop.

    ## When it is fine
    In the first steps, while the cache fills."""

    code = "GAP402"
    name = "allocator-churn"
    advice = (
        "pad variable lengths to a few sizes, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; "
        "remove `torch.cuda.empty_cache()` from the loop"
    )
    change = "pad variable lengths to a few sizes"

    def of_profile(self, profile: Profile) -> Iterator[Hit]:
        if profile_rules.is_sawing(profile):
            return  # GAP401 says more of the same
        places = [
            spot
            for spot in profile_rules.find_spots(profile, "allocator")
            if not profile_rules.is_first_step_only(profile, spot)
        ]
        if not places or not profile_rules.is_recurring(profile, whole := profile_rules.merge_spots(places)):
            return
        if (
            profile_rules.share_of_steps(profile, min(whole.idle, profile.idle))
            < profile_rules.MIN_SHARE_OF_PLACE
        ):
            return
        remedy = _remedy(profile, whole)
        for spot in profile_rules.spots_to_report(profile, places):
            yield spot.hit(
                profile, (spot.idle_for(profile), profile_rules.describe_calls(profile, spot)), *remedy
            )

    def of_memory(self, memory: MemoryReport) -> Iterator[Hit]:
        steps = memory_rules.steady_steps(memory)
        asking = [step for step in steps if step.taken and not step.given]
        late = steps[len(steps) // 2 :]
        if len(asking) < memory_rules.MIN_RECURRENCES or len(asking) < memory_rules.MIN_RECURRING_SHARE * len(
            steps
        ):
            return
        if not any(step.taken and not step.given for step in late) or memory.growth:
            return  # the cache has filled, or what is in use grows (GAP405), be it up to a bound
        calls = sum(step.taken for step in asking)
        yield Hit(
            evidence=(
                f"{len(asking)} of {len(steps)} steady steps ask the driver for memory, "
                f"{count(calls, 'call')} in all: cached blocks do not fit",
            ),
            remedy=f"the cache never fits: {memory_rules.advise_setting(memory)}",
            calls=calls,
            steps=len(asking),
        )


def _remedy(profile: Profile, spot: CostSpot) -> tuple[str, ...]:
    """Return what to write instead, also in a few words if more specific than the rule."""
    text = spot.words.lower()
    if "empty_cache" in text:
        return profile_rules.NO_EMPTY_CACHE
    names = [cost.site.operator.lower() for cost in spot.costs]
    if names and all(any(pinned in name for pinned in _PINNED) for name in names):
        return (
            "pinned memory is allocated in the steps: let the DataLoader pin its batches "
            "(`pin_memory=True`), or allocate one pinned buffer before the loop and reuse it",
            "pin in the DataLoader: `pin_memory=True`",
        )
    if any(name in text for name in _GIVE_BACK):
        return (
            "memory is returned and requested again: remove `torch.cuda.empty_cache()` from the loop, and "
            f"{profile_rules.advise_few_sizes(profile)}",
        )
    return (f"the cache never fits: {profile_rules.advise_few_sizes(profile)}",)
