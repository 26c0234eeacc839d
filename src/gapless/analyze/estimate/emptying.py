"""Price what `torch.cuda.empty_cache()` costs besides the wait: memory is freed and allocated again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import msgspec

from gapless.memory.simulate import simulate
from gapless.model.memory import EMPTY, FREE, MemoryRun
from gapless.model.memory_calls import CallTimes

_COLUMNS = ("action", "ident", "size", "stream", "place", "time", "address", "pool")


def emptying_cost(runs: Sequence[MemoryRun]) -> float:
    """Nanoseconds of driver calls that one call of ``empty_cache`` causes, then and later.

    The caching allocator is replayed on the run's requests, with these calls and without them. A call that
    finds nothing to free does not wait and costs nothing. Without a recording the cost is freeing and
    allocating one segment.
    """
    count = sum(_count_effective(run) for run in runs)
    if not count:
        return float(CallTimes().free + CallTimes().malloc)
    more = sum(simulate(run).price - simulate(_without_emptying(run)).price for run in runs)
    return max(more, 0) / count


def _count_effective(run: MemoryRun) -> int:
    """Count the calls before which something was freed since the last call."""
    calls, freed = 0, False
    for action in run.action:
        if action == FREE:
            freed = True
        elif action == EMPTY:
            calls += freed
            freed = False
    return calls


def _without_emptying(run: MemoryRun) -> MemoryRun:
    """Return the same run without calls that empty the cache."""
    keep = [action != EMPTY for action in run.action]
    columns = {name: tuple(compress(getattr(run, name), keep)) for name in _COLUMNS}
    return msgspec.structs.replace(run, **columns, used=(), batches=())
