"""What `torch.cuda.empty_cache()` costs besides the wait: memory is given back, and taken again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import msgspec

from gapless.memory.simulate import simulate
from gapless.model.memory import EMPTY, FREE, MemoryRun
from gapless.model.memory_calls import CallTimes

_COLUMNS = ("action", "ident", "size", "stream", "place", "time", "address", "pool")


def emptying(runs: Sequence[MemoryRun]) -> float:
    """Nanoseconds of calls to the driver that one call of ``empty_cache`` brings, its later ones included.

    The caching allocator is replayed on what the run asked for, with these calls and without them. A call
    that finds nothing to give back does not wait either, and has no price. Where nothing was recorded it is
    one segment that goes and comes.
    """
    count = sum(_with_something(run) for run in runs)
    if not count:
        return float(CallTimes().free + CallTimes().malloc)
    more = sum(simulate(run).price - simulate(_kept(run)).price for run in runs)
    return max(more, 0) / count


def _with_something(run: MemoryRun) -> int:
    """Calls since whose predecessor something was freed."""
    calls, freed = 0, False
    for action in run.action:
        if action == FREE:
            freed = True
        elif action == EMPTY:
            calls += freed
            freed = False
    return calls


def _kept(run: MemoryRun) -> MemoryRun:
    """The same requests of a programme that keeps its cache."""
    keep = [action != EMPTY for action in run.action]
    columns = {name: tuple(compress(getattr(run, name), keep)) for name in _COLUMNS}
    return msgspec.structs.replace(run, **columns, used=(), batches=())
