"""What the rules ask of a `MemoryReport`."""

from __future__ import annotations

from gapless.model.event import Site
from gapless.model.memory_report import MemoryReport, StepEnd
from gapless.model.source import SourceLine
from gapless.model.wording import binary_size, percent

WARM_UP = 2
"""Steps in which the cache fills."""
RECURS = 3
"""Steady steps that must show a pattern."""
OFTEN = 0.1
"""The share of the steady steps that must show it."""
_BETTER = 0.1
"""The part of the reserved memory that other settings must save to be named as the remedy."""
_LEAK = 1 << 10
"""Bytes a step from which what stays is a leak: a number kept for a log takes less."""
_NEARLY_ALL = 0.95
"""The share of what grows that must be in containers with a bound."""


NEED_LESS = (
    "reduce memory use: `torch.autocast`, checkpointing of activations, or a smaller batch with gradient "
    "accumulation"
)


def steady(memory: MemoryReport) -> list[StepEnd]:
    """The steps after the first ones, with calls of each step alone."""
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


def leaks(memory: MemoryReport) -> bool:
    """Whether tensors of step after step stay, and no bound is known at which they still fit."""
    whole = sum(one.bytes / one.every for one in memory.growth)
    if whole < _LEAK:
        return False
    bounded = [one for one in memory.holders if one.in_the_end >= 0]
    if sum(one.per_step / one.every for one in bounded) < _NEARLY_ALL * whole:
        return True
    return 0 <= limit(memory) < memory.baseline.peak_allocated + sum(one.in_the_end for one in bounded)


def limit(memory: MemoryReport) -> int:
    """Bytes that the process can have; -1 where that is unknown."""
    return memory.room


def site(line: SourceLine | None) -> Site | None:
    """A place of the memory."""
    return Site(operator="", mechanism="none", stack=(line,)) if line is not None else None


def expandable_helps(memory: MemoryReport) -> str:
    """What expandable segments would save, with numbers; "" where they were not tried, or help little."""
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
    if base.peak_reserved and saved >= _BETTER * base.peak_reserved:
        return (
            f"with expandable segments at most {binary_size(other.peak_reserved)} are reserved instead of "
            f"{binary_size(base.peak_reserved)}, {percent(saved / base.peak_reserved)} less"
        )
    return ""


def better(memory: MemoryReport) -> str:
    """What the replays say would help: the one setting that the report advises, or that none does."""
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
        return f"none of the allocator settings tried helps; {NEED_LESS}"
    return "`gapless memory --search` shows which settings, or which padding of variable lengths, would help"
