"""Compute what is missing if a request fails: how much there was, and with how much the run fits."""

from __future__ import annotations

import msgspec

from gapless.memory.driver import UNLIMITED
from gapless.memory.settings import parse
from gapless.memory.simulate import Begin, Simulation
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, FAILED, MemoryRun
from gapless.model.memory_answer import OutOfMemory, Refusal
from gapless.model.memory_report import Outcome, Shortage

_MAX_REPLAYS = 8
"""Replays with more memory; two nearly always suffice."""
_MAX_BISECTIONS = 10
"""Each halves the interval between too little and enough."""
_BISECTION_BYTES = 2 << 20
"""Bisection ends below this difference: one segment."""


def tighten_limit(run: MemoryRun) -> MemoryRun:
    """Return `run` with a limit under which its recorded failures also occur in the replay, if there is one.

    Requests of expandable segments that failed are known only to a page.
    """
    recorded = run.recorded
    for _ in range(_MAX_REPLAYS if recorded is not None and recorded.ooms and run.limit >= 0 else 0):
        replay = Simulation(run).go(points=1)
        assert recorded is not None
        if replay.failures >= recorded.ooms or not recorded.floor < replay.passed <= run.limit:
            break
        run = msgspec.structs.replace(run, limit=replay.passed - 1)
    return run


def shortfall(run: MemoryRun, where: TrialConditions, base: Outcome) -> OutOfMemory | None:
    """Return what is missing in `run` with outcome `base`; None if no request fails."""
    failed = base.shortage or base.failure
    refusal = run.refusals[-1] if run.refusals and where.capacity < 0 else None
    if base.shortage is not None:
        refusal = None  # the replay ends before it
    if failed is None and refusal is None:
        return None
    replay = Simulation(run, **where._asdict())
    has = replay.room
    recorded = run.recorded
    lack = OutOfMemory(
        event=failed.event if failed else -1,
        asked=failed.size if failed else 0,
        line=failed.line if failed else None,
        free=failed.unreserved if failed else -1,
        allocated=failed.allocated if failed else 0,
        reserved=failed.reserved if failed else 0,
        unusable=failed.cached if failed else 0,
        largest=failed.largest if failed else 0,
        has=has,
        needs=find_least_bytes(run, where, has, replay.begin),
        unlimited=_attempt(run, where, UNLIMITED, replay.begin).allocator.peak_reserved,
        ended=ends_with_failure(run),
        open=is_partial(run),
    )
    if refusal is None:
        return lack
    return _with_recorded_failure(run, lack, refusal, least=recorded is None or not recorded.told)


def _with_recorded_failure(run: MemoryRun, lack: OutOfMemory, refusal: Refusal, least: bool) -> OutOfMemory:
    """Return `lack` with the recorded failure, which knows the free memory, even if the replay avoids it."""
    at, size = refusal.event, run.size[refusal.event]
    changed = {"event": at, "asked": size, "line": run.line(run.place[at]), "free": refusal.free}
    if lack.event != at:  # the replay avoids it: what the process could use changed while it ran
        shortage = _memory_before(run, at)
        changed |= {"allocated": shortage.allocated, "reserved": refusal.reserved}
        changed |= {"unusable": refusal.reserved - shortage.allocated, "largest": shortage.largest}
        has = refusal.reserved + max(refusal.free, 0)
        changed |= {"has": has, "needs": max(lack.needs, refusal.reserved + size)}
    return msgspec.structs.replace(lack, recorded=True, least=least, **changed)


def _memory_before(run: MemoryRun, event: int) -> Shortage:
    """Return the memory before `event` in the replay of the run."""
    replay = Simulation(run, stop=event).go(points=1)
    return replay.short_of(event)


def find_least_bytes(run: MemoryRun, where: TrialConditions, least: int, begin: Begin = "recorded") -> int:
    """Return the least bytes, at least `least`, with which `run` succeeds under its own settings.

    Each failing request gets the memory it needs, and the run is replayed with that until none fails. Less
    may suffice if blocks then lie elsewhere: that is found by bisection. A successful replay needs no more
    than the most it reserved.
    """
    high = least
    for _ in range(_MAX_REPLAYS):
        replay = _attempt(run, where, high, begin, grows=True)
        if replay.needs <= high:
            break
        high = replay.needs
    else:
        replay = _attempt(run, where, UNLIMITED, begin)
    high, low = replay.allocator.peak_reserved, least
    for _ in range(_MAX_BISECTIONS):
        if high - low <= _BISECTION_BYTES:
            break
        middle = (low + high) // 2
        replay = _attempt(run, where, middle, begin)
        if replay.shortage is None and not replay.failures:
            high = replay.allocator.peak_reserved
        else:
            low = middle
    return high


def _attempt(
    run: MemoryRun, where: TrialConditions, capacity: int, begin: Begin, *, grows: bool = False
) -> Simulation:
    """Replay the run with `capacity` bytes for its process and without a fraction."""
    settings = parse(run.settings)._replace(fraction=1.0)
    replay = Simulation(run, settings, capacity=capacity, total=where.total, begin=begin, grows=grows)
    return replay.go(points=1)


def ends_with_failure(run: MemoryRun) -> bool:
    """Whether the recorded run requested nothing more after a failed request."""
    rows = [action for action in run.action if action in (ALLOC, FAILED)]
    return bool(rows) and rows[-1] == FAILED


def is_partial(run: MemoryRun) -> bool:
    """Whether the recording shows only part of the run: it begins with memory in use or ends with a
    failure.
    """
    return ends_with_failure(run) or any(
        block.ident >= 0 for segment in run.start for block in segment.blocks
    )
