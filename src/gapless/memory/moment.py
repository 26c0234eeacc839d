"""Who holds memory at a moment of a run, and what lies idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping

from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.simulate import Begin, Simulation
from gapless.model.memory import ALLOC, STEP, Kind, MemoryRun, Moment, Owner
from gapless.model.source import SourceLine

OWNERS = 50
"""At most so many owners are kept, those with the most bytes."""


def moment(
    run: MemoryRun, event: int, *, capacity: int = -1, total: int = -1, begin: Begin = "recorded"
) -> Moment:
    """The memory after `event` of `run`, replayed under its own settings (-1: when it begins)."""
    replay = Simulation(run, capacity=capacity, total=total, begin=begin, stop=event + 1).go(points=1)
    return of_simulation(run, replay, event)


def of_simulation(run: MemoryRun, replay: Simulation, event: int) -> Moment:
    """The memory where `replay` stands, which is after `event`."""
    allocator, live = replay.allocator, replay.live.blocks
    who, kinds = owners(run, {ident: block.requested for ident, block in live.items()})
    free = _free(allocator)
    small = sum(block.size for block in free if block.pool.small)
    total = sum(block.size for block in free)
    line, operator = asking(run, event)
    return Moment(
        event=event,
        line=line,
        operator=operator,
        time=run.time[event] if run.time and event >= 0 else -1,
        step=sum(action == STEP for action in run.action[: event + 1]),
        allocated=allocator.allocated,
        reserved=allocator.reserved,
        slack=allocator.allocated - allocator.requested,
        free=total,
        free_blocks=len(free),
        largest=max((block.size for block in free), default=0),
        small=small,
        large=total - small,
        owners=who,
        kinds=kinds,
    )


def _free(allocator: Allocator) -> list[Block]:
    pools = [allocator.small, allocator.large]
    for private in allocator.private.values():
        pools += [private.small, private.large]
    return [block for pool in pools for block in pool.blocks()]


def owners(run: MemoryRun, live: Mapping[int, int]) -> tuple[tuple[Owner, ...], dict[str, int]]:
    """The bytes of the allocations `live` by line, operator and kind; and by kind alone."""
    places = places_of(run, live)
    size: defaultdict[int, int] = defaultdict(int)
    count: defaultdict[int, int] = defaultdict(int)
    for ident, held in live.items():
        size[places[ident]] += held
        count[places[ident]] += 1
    merged: dict[tuple[SourceLine | None, str, Kind, bool], list[int]] = {}
    early = {b.place for segment in run.start for b in segment.blocks if not run.stack(b.place)}
    kinds: dict[str, int] = {}
    for place, taken in size.items():
        known = run.places[place] if 0 <= place < len(run.places) else None
        kind: Kind = known.kind if known else "unknown"
        line = run.line(place)
        # Where a line is known, what it calls need not be told apart.
        operator = "" if known is None or (line and line.is_user) else known.operator
        key = (line, operator, kind, line is None and not operator and place in early)
        sums = merged.setdefault(key, [0, 0])
        sums[0] += taken
        sums[1] += count[place]
        kinds[kind] = kinds.get(kind, 0) + taken
    found = [
        Owner(line=line, operator=operator, kind=kind, before=before, bytes=taken, tensors=tensors)
        for (line, operator, kind, before), (taken, tensors) in merged.items()
    ]
    found.sort(key=lambda one: (-one.bytes, one.line.where if one.line else "", one.operator, one.kind))
    return tuple(found[:OWNERS]), dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def asking(run: MemoryRun, event: int) -> tuple[SourceLine | None, str]:
    """The line and the operator of `event`; None and "" where it asks for nothing, or none is known."""
    if event < 0 or run.action[event] != ALLOC:
        return None, ""
    place = run.place[event]
    known = run.places[place] if 0 <= place < len(run.places) else None
    return run.line(place), known.operator if known else ""


def places_of(run: MemoryRun, live: Container[int]) -> dict[int, int]:
    """Where each of `live` was asked for."""
    found = {block.ident: block.place for segment in run.start for block in segment.blocks}
    for action, ident, place in zip(run.action, run.ident, run.place, strict=True):
        if action == ALLOC and ident in live:
            found[ident] = place
    return found
