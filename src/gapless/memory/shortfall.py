"""What is missing where a request fails: how much there was, and with how much the run would come through."""

from __future__ import annotations

import msgspec

from gapless.memory.driver import UNLIMITED
from gapless.memory.settings import parse
from gapless.memory.simulate import Begin, Simulation
from gapless.memory.trials import Where
from gapless.model.memory import ALLOC, FAILED, MemoryRun
from gapless.model.memory_answer import OutOfMemory, Refusal
from gapless.model.memory_report import Outcome, Shortage

_ROUNDS = 8
"""Replays at most in which more is given; two do nearly always."""
_HALVES = 10
_CLOSE = 2 << 20
"""Bytes between what does and what does not do; one segment."""


def tightened(run: MemoryRun) -> MemoryRun:
    """`run` with a limit under which what failed when it was recorded fails in its replay, if there is one.

    What expandable segments asked for when they failed is known only to a page.
    """
    recorded = run.recorded
    for _ in range(_ROUNDS if recorded is not None and recorded.ooms and run.limit >= 0 else 0):
        replay = Simulation(run).go(points=1)
        assert recorded is not None
        if replay.failures >= recorded.ooms or not recorded.floor < replay.passed <= run.limit:
            break
        run = msgspec.structs.replace(run, limit=replay.passed - 1)
    return run


def shortfall(run: MemoryRun, where: Where, base: Outcome) -> OutOfMemory | None:
    """What is missing in `run`, of which `base` is the outcome; None where every request is met."""
    failed = base.shortage or base.failure
    refusal = run.refusals[-1] if run.refusals and where.capacity < 0 else None
    if base.shortage is not None:
        refusal = None  # it ends before that
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
        needs=needed(run, where, has, replay.begin),
        unlimited=_attempt(run, where, UNLIMITED, replay.begin).allocator.peak_reserved,
        ended=ended(run),
        open=opened(run),
    )
    if refusal is None:
        return lack
    return _as_recorded(run, lack, refusal, least=recorded is None or not recorded.told)


def _as_recorded(run: MemoryRun, lack: OutOfMemory, refusal: Refusal, least: bool) -> OutOfMemory:
    """`lack` as the recorded run met it, which tells what was free, also where its replay gets by."""
    at, asked = refusal.event, run.size[refusal.event]
    changed = {"event": at, "asked": asked, "line": run.line(run.place[at]), "free": refusal.free}
    if lack.event != at:  # the replay got by: what the process could have changed while it ran
        found = _seen(run, at)
        changed |= {"allocated": found.allocated, "reserved": refusal.reserved}
        changed |= {"unusable": refusal.reserved - found.allocated, "largest": found.largest}
        has = refusal.reserved + max(refusal.free, 0)
        changed |= {"has": has, "needs": max(lack.needs, refusal.reserved + asked)}
    return msgspec.structs.replace(lack, recorded=True, least=least, **changed)


def _seen(run: MemoryRun, event: int) -> Shortage:
    """The memory before `event`, where the replay of the run meets it."""
    replay = Simulation(run, stop=event).go(points=1)
    return replay.short_of(event)


def needed(run: MemoryRun, where: Where, least: int, begin: Begin = "recorded") -> int:
    """The least bytes over `least` with which `run` was seen to come through under its own settings.

    Each request that fails gets what it takes, and the run is replayed with that from its beginning, until
    none fails. Less may do as well, where memory then comes to lie otherwise: that is searched for by halves.
    A replay that comes through does the same with no more than it reserved at most.
    """
    high = least
    for _ in range(_ROUNDS):
        replay = _attempt(run, where, high, begin, grows=True)
        if replay.needs <= high:
            break
        high = replay.needs
    else:
        replay = _attempt(run, where, UNLIMITED, begin)
    high, low = replay.allocator.peak_reserved, least
    for _ in range(_HALVES):
        if high - low <= _CLOSE:
            break
        middle = (low + high) // 2
        replay = _attempt(run, where, middle, begin)
        if replay.shortage is None and not replay.failures:
            high = replay.allocator.peak_reserved
        else:
            low = middle
    return high


def _attempt(run: MemoryRun, where: Where, capacity: int, begin: Begin, *, grows: bool = False) -> Simulation:
    """The run with `capacity` bytes for its process, and no fraction of them."""
    settings = parse(run.settings)._replace(fraction=1.0)
    replay = Simulation(run, settings, capacity=capacity, total=where.total, begin=begin, grows=grows)
    return replay.go(points=1)


def ended(run: MemoryRun) -> bool:
    """Whether the recorded run asked for nothing more after a request that failed."""
    rows = [action for action in run.action if action in (ALLOC, FAILED)]
    return bool(rows) and rows[-1] == FAILED


def opened(run: MemoryRun) -> bool:
    """Whether the recording shows a part of the run: it begins with memory in use, or ends with a failure."""
    return ended(run) or any(block.ident >= 0 for segment in run.start for block in segment.blocks)
