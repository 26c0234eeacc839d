"""Who holds memory at a moment of a run, and what lies idle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.kinds import kinds_of
from gapless.memory.modules import folded, one_of, part_of
from gapless.memory.parts import parts
from gapless.memory.simulate import Begin, Simulation
from gapless.model.memory import ALLOC, STEP, Kind, MemoryRun, Place
from gapless.model.memory_report import ModuleShare, Moment, Owner
from gapless.model.source import SourceLine

OWNERS = 50
"""At most so many owners are kept, those with the most bytes."""


def moment(
    run: MemoryRun,
    event: int,
    *,
    capacity: int = -1,
    total: int = -1,
    begin: Begin = "recorded",
    most: int = OWNERS,
) -> Moment:
    """The memory after `event` of `run`, replayed under its own settings (-1: when it begins)."""
    replay = Simulation(run, capacity=capacity, total=total, begin=begin, stop=event + 1).go(points=1)
    return of_simulation(run, replay, event, most)


def of_simulation(run: MemoryRun, replay: Simulation, event: int, most: int = OWNERS) -> Moment:
    """The memory where `replay` stands, which is after `event`."""
    allocator, live = replay.allocator, replay.live.blocks
    requested = {ident: block.requested for ident, block in live.items()}
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
        **holders(run, requested, event, most),
    )


def _free(allocator: Allocator) -> list[Block]:
    pools = [allocator.small, allocator.large]
    for private in allocator.private.values():
        pools += [private.small, private.large]
    return [block for pool in pools for block in pool.blocks()]


class _Sum:
    """What one owner holds, by operator and module."""

    def __init__(self) -> None:
        self.bytes = self.tensors = 0
        self.operators: Counter[str] = Counter()
        self.modules: set[str] = set()

    def add(self, held: int, place: Place | None) -> None:
        self.bytes += held
        self.tensors += 1
        if place is not None:
            self.operators[place.operator] += held
            if place.module:
                self.modules.add(place.module)


class _Key(NamedTuple):
    kind: Kind
    module: str
    line: SourceLine | None
    operator: str
    before: bool
    threaded: bool


def holders(run: MemoryRun, live: Mapping[int, int], event: int, most: int = OWNERS) -> dict[str, Any]:
    """Who holds the allocations `live` at `event`, as the fields of a `Moment`."""
    places = places_of(run, live)
    roles = kinds_of(run, places, event)
    who, kinds = owners(run, live, places, roles, most)
    return {
        "owners": who,
        "kinds": kinds,
        "modules": shares(run, live),
        "parts": parts(run, live, places, roles),
    }


def owners(
    run: MemoryRun,
    live: Mapping[int, int],
    places: Mapping[int, int],
    roles: Mapping[int, Kind],
    most: int = OWNERS,
) -> tuple[tuple[Owner, ...], dict[str, int]]:
    """The bytes of the allocations `live` by kind, module and line; and by kind alone."""
    early = {b.place for segment in run.start for b in segment.blocks if not run.stack(b.place)}
    traced = any(place.lines for place in run.places)
    sums: defaultdict[_Key, _Sum] = defaultdict(_Sum)
    keys: dict[tuple[int, Kind], _Key] = {}
    kinds: Counter[str] = Counter()
    for ident, held in live.items():
        place, kind = places[ident], roles[ident]
        key = keys.get((place, kind))
        if key is None:
            key = keys[place, kind] = _key(run, place, kind, place in early, traced)
        sums[key].add(held, run.places[place] if 0 <= place < len(run.places) else None)
        kinds[kind] += held
    found = [_owner(key, one) for key, one in sums.items()]
    found.sort(key=lambda one: (-one.bytes, one.line.where if one.line else "", one.module, one.operator))
    return tuple(found[:most]), dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _key(run: MemoryRun, at: int, kind: Kind, early: bool, traced: bool) -> _Key:
    """What is one owner: a module's tensors of a kind from a line; of gradients, its part of the model's."""
    known = run.places[at] if 0 <= at < len(run.places) else Place()
    line = run.line(at)
    module = folded(known.module)
    if known.module and kind in ("parameter", "gradient", "optimizer"):
        module, line = part_of(known.module), line if kind != "gradient" else None
    operator = "" if module or (line and line.is_user) else known.operator
    nowhere = line is None and not operator and not module
    return _Key(kind, module, line, operator, nowhere and early, traced and nowhere and not early)


def _owner(key: _Key, one: _Sum) -> Owner:
    named = Counter({name: held for name, held in one.operators.items() if name})
    return Owner(
        line=key.line,
        operator=key.operator or next((name for name, _ in named.most_common(1)), ""),
        kind=key.kind,
        before=key.before,
        threaded=key.threaded,
        bytes=one.bytes,
        tensors=one.tensors,
        module=key.module,
        modules=len({one_of(module) if "*" in key.module else module for module in one.modules}),
        operators=len(named),
    )


def shares(run: MemoryRun, live: Mapping[int, int]) -> tuple[ModuleShare, ...]:
    """The bytes of the allocations `live` by the part of the model that they belong to."""
    held: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    ones: defaultdict[str, set[str]] = defaultdict(set)
    for ident, at in places_of(run, live).items():
        module = run.places[at].module if 0 <= at < len(run.places) else ""
        if module:
            part = part_of(module)
            held[part] += live[ident]
            tensors[part] += 1
            ones[part].add(one_of(module))
    return tuple(
        ModuleShare(module=part, modules=len(ones[part]), bytes=taken, tensors=tensors[part])
        for part, taken in held.most_common(OWNERS)
    )


def asking(run: MemoryRun, event: int) -> tuple[SourceLine | None, str]:
    """The line and the operator of `event`; None and "" where it asks for nothing, or none is known."""
    if event < 0 or run.action[event] != ALLOC:
        return None, ""
    place = run.place[event]
    known = run.places[place] if 0 <= place < len(run.places) else None
    return run.line(place), known.operator if known else ""


def places_of(run: MemoryRun, live: Container[int]) -> dict[int, int]:
    """Where each of `live` was asked for."""
    started = (block for segment in run.start for block in segment.blocks)
    found = {block.ident: block.place for block in started if block.ident in live}
    for action, ident, place in zip(run.action, run.ident, run.place, strict=True):
        if action == ALLOC and ident in live:
            found[ident] = place
    return found
