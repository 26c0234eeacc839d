"""What the rules ask of a `MemoryReport`."""

from __future__ import annotations

from gapless.model.event import Site
from gapless.model.memory import MemoryReport, StepEnd
from gapless.model.source import SourceLine
from gapless.model.wording import percent, size

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
    """Whether tensors of step after step stay."""
    return sum(one.bytes for one in memory.growth) >= _LEAK


def limit(memory: MemoryReport) -> int:
    """Bytes that the process can have; -1 where that is unknown."""
    return memory.limit if memory.limit >= 0 else memory.total_memory


def site(line: SourceLine | None) -> Site | None:
    """A place of the memory."""
    return Site(operator="", mechanism="none", stack=(line,)) if line is not None else None


def expandable_helps(memory: MemoryReport) -> str:
    """What expandable segments would save, with numbers; "" where they were not tried, or help little."""
    base, other = memory.baseline, memory.expandable
    if other is None or other.shortage is not None:
        return ""
    if base.shortage is not None:
        return f"with expandable segments it fits, with {size(other.peak_reserved)} reserved"
    if other.retries < base.retries:
        return f"with expandable segments {other.retries} requests instead of {base.retries} find it full"
    saved = base.peak_reserved - other.peak_reserved
    if base.peak_reserved and saved >= _BETTER * base.peak_reserved:
        return (
            f"with expandable segments at most {size(other.peak_reserved)} are reserved instead of "
            f"{size(base.peak_reserved)}, {percent(saved / base.peak_reserved)} less"
        )
    return ""


def better(memory: MemoryReport) -> str:
    """What the replays say would help."""
    if memory.best >= 0:
        return f"set `PYTORCH_CUDA_ALLOC_CONF={memory.trials[memory.best].settings}`, the best that was tried"
    if expandable_helps(memory):
        return "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
    few = "pad variable lengths to few sizes (multiples of 64 or 128), or run the largest batch first"
    if memory.searched or not memory.replayed:
        return few
    return f"{few}: `gapless memory --search` says what other settings would do"
