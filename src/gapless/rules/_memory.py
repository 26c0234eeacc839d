"""Shared by the rules of memory: questions about a `MemoryReport`."""

from __future__ import annotations

from gapless.model.event import Site
from gapless.model.memory_report import MemoryReport, StepEnd
from gapless.model.source import SourceLine
from gapless.model.wording import binary_size, percent

WARM_UP = 2
"""Steps in which the cache fills."""
MIN_RECURRENCES = 3
"""Steady steps that must show a pattern."""
MIN_RECURRING_SHARE = 0.1
"""Share of the steady steps that must show a pattern."""
_MIN_SAVED_SHARE = 0.1
"""Share of the reserved memory that other settings must save to be recommended."""
_MIN_LEAK_BYTES = 1 << 10
"""Bytes per step from which growth is a leak: a number kept for a log takes less."""
_MIN_BOUNDED_SHARE = 0.95
"""Share of the growth that must be in bounded containers for it not to be a leak."""


REDUCE_USE = (
    "reduce memory use: `torch.autocast`, checkpointing of activations, or a smaller batch with gradient "
    "accumulation"
)


def steady_steps(memory: MemoryReport) -> list[StepEnd]:
    """Return the steps after the warm-up, each with its own calls only."""
    ends = memory.ends
    return [
        StepEnd(
            event=now.event,
            allocated=now.allocated - before.allocated,
            reserved=now.reserved - before.reserved,
            taken=now.taken - before.taken,
            given=now.given - before.given,
            retries=now.retries - before.retries,
        )
        for before, now in zip(ends[WARM_UP - 1 :], ends[WARM_UP:], strict=False)
    ]


def is_leaking(memory: MemoryReport) -> bool:
    """Whether tensors of step after step stay, without a known bound within which they fit."""
    whole = sum(growth.bytes / growth.every for growth in memory.growth)
    if whole < _MIN_LEAK_BYTES:
        return False
    bounded = [holder for holder in memory.holders if holder.in_the_end >= 0]
    if sum(holder.per_step / holder.every for holder in bounded) < _MIN_BOUNDED_SHARE * whole:
        return True
    return (
        0
        <= available_bytes(memory)
        < memory.baseline.peak_allocated + sum(holder.in_the_end for holder in bounded)
    )


def available_bytes(memory: MemoryReport) -> int:
    """Return the bytes that the process can have; -1 if unknown."""
    return memory.room


def memory_site(line: SourceLine | None) -> Site | None:
    """Return the site of a line that allocates or keeps memory."""
    return Site(operator="", mechanism="none", stack=(line,)) if line is not None else None


def describe_expandable(memory: MemoryReport) -> str:
    """Describe what expandable segments would save; "" if they were not tried or help little."""
    base, other = memory.baseline, memory.expandable
    if other is None or other.shortage is not None:
        return ""
    if other.failures:
        return ""
    if memory.lack is not None:
        return f"with expandable segments it fits, with {binary_size(other.peak_reserved)} reserved"
    if other.retries < base.retries:
        return (
            f"with expandable segments {other.retries} requests instead of {base.retries} find the GPU full"
        )
    saved = base.peak_reserved - other.peak_reserved
    if base.peak_reserved and saved >= _MIN_SAVED_SHARE * base.peak_reserved:
        return (
            f"with expandable segments at most {binary_size(other.peak_reserved)} are reserved instead of "
            f"{binary_size(base.peak_reserved)}, {percent(saved / base.peak_reserved)} less"
        )
    return ""


def advise_setting(memory: MemoryReport) -> str:
    """Return the advice that the replays support: the recommended setting, or that none helps."""
    if memory.remedy >= 0:
        return memory.remedies[memory.remedy].title
    if memory.advised:
        best = ", the best that was tried" if memory.best >= 0 else ", which its replay confirms"
        return f"set `PYTORCH_CUDA_ALLOC_CONF={memory.advised}`{best}"
    if memory.lack is not None and memory.lack.afresh:
        return "this recording cannot show whether a setting helps: record from the start of the script"
    few = "pad variable lengths to a few sizes (multiples of 64 or 128), or run the largest batch first"
    if not memory.replayed:
        return f"{few}: a snapshot can be replayed, which shows whether a setting helps"
    if memory.trials:
        return f"none of the allocator settings tried helps; {REDUCE_USE}"
    return "`gapless memory --search` shows which settings, or which padding of variable lengths, would help"
