"""Report who holds memory at one moment of a run, and what lies idle."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from gapless.memory.allocator import Allocator
from gapless.memory.blocks import Block
from gapless.memory.kinds import kinds_of
from gapless.memory.modules import fold_numbers, fold_part, part_name
from gapless.memory.parts import parts
from gapless.memory.simulate import Begin, Simulation
from gapless.model.memory import ALLOC, STEP, Kind, MemoryRun, Place
from gapless.model.memory_report import ModuleShare, Moment, Owner
from gapless.model.source import SourceLine

MAX_OWNERS = 50
"""Owners of a report, largest first; smaller ones are cut off."""


def moment(
    run: MemoryRun,
    event: int,
    *,
    capacity: int = -1,
    total: int = -1,
    begin: Begin = "recorded",
    max_owners: int = MAX_OWNERS,
) -> Moment:
    """Return the memory after `event` of `run`, replayed under its own settings (-1: at its beginning)."""
    replay = Simulation(run, capacity=capacity, total=total, begin=begin, stop=event + 1).go(points=1)
    return of_simulation(run, replay, event, max_owners)


def of_simulation(run: MemoryRun, replay: Simulation, event: int, max_owners: int = MAX_OWNERS) -> Moment:
    """Return the memory at the current state of `replay`, which is after `event`."""
    allocator, live = replay.allocator, replay.live.blocks
    requested = {ident: block.requested for ident, block in live.items()}
    free = _free(allocator)
    small = sum(block.size for block in free if block.pool.small)
    total = sum(block.size for block in free)
    line, operator = requesting_line(run, event)
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
        **holders(run, requested, event, max_owners),
    )


def _free(allocator: Allocator) -> list[Block]:
    pools = [allocator.small, allocator.large]
    for private in allocator.private.values():
        pools += [private.small, private.large]
    return [block for pool in pools for block in pool.blocks()]


class _OwnerTotals:
    """Bytes and tensors of one owner, by operator and module."""

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


class _OwnerKey(NamedTuple):
    kind: Kind
    module: str
    line: SourceLine | None
    operator: str
    before: bool
    threaded: bool


def holders(
    run: MemoryRun, live: Mapping[int, int], event: int, max_owners: int = MAX_OWNERS
) -> dict[str, Any]:
    """Return who holds the allocations `live` at `event`, as fields of `Moment`."""
    places = places_of(run, live)
    roles = kinds_of(run, places, event)
    owner_rows, kinds = owners(run, live, places, roles, max_owners)
    return {
        "owners": owner_rows,
        "kinds": kinds,
        "modules": shares(run, live),
        "parts": parts(run, live, places, roles),
    }


def owners(
    run: MemoryRun,
    live: Mapping[int, int],
    places: Mapping[int, int],
    roles: Mapping[int, Kind],
    max_owners: int = MAX_OWNERS,
) -> tuple[tuple[Owner, ...], dict[str, int]]:
    """Return the owners of the allocations `live`, largest first, and their bytes by kind."""
    early = {b.place for segment in run.start for b in segment.blocks if not run.stack(b.place)}
    traced = any(place.lines for place in run.places)
    sums: defaultdict[_OwnerKey, _OwnerTotals] = defaultdict(_OwnerTotals)
    keys: dict[tuple[int, Kind], _OwnerKey] = {}
    kinds: Counter[str] = Counter()
    for ident, held in live.items():
        place, kind = places[ident], roles[ident]
        key = keys.get((place, kind))
        if key is None:
            key = keys[place, kind] = _owner_key(run, place, kind, place in early, traced)
        sums[key].add(held, run.places[place] if 0 <= place < len(run.places) else None)
        kinds[kind] += held
    rows = [_owner(key, totals) for key, totals in sums.items()]
    rows.sort(key=lambda row: (-row.bytes, row.line.where if row.line else "", row.module, row.operator))
    return tuple(rows[:max_owners]), dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))


def _owner_key(run: MemoryRun, at: int, kind: Kind, early: bool, traced: bool) -> _OwnerKey:
    """Return the owner of an allocation: module, kind and line; for gradients the part of the model."""
    record = run.places[at] if 0 <= at < len(run.places) else Place()
    line = run.line(at)
    module = fold_numbers(record.module)
    if record.module and kind in ("parameter", "gradient", "optimizer"):
        module, line = fold_part(record.module), line if kind != "gradient" else None
    operator = "" if module or (line and line.is_user) else record.operator
    nowhere = line is None and not operator and not module
    return _OwnerKey(kind, module, line, operator, nowhere and early, traced and nowhere and not early)


def _owner(key: _OwnerKey, totals: _OwnerTotals) -> Owner:
    named = Counter({name: held for name, held in totals.operators.items() if name})
    return Owner(
        line=key.line,
        operator=key.operator or next((name for name, _ in named.most_common(1)), ""),
        kind=key.kind,
        before=key.before,
        threaded=key.threaded,
        bytes=totals.bytes,
        tensors=totals.tensors,
        module=key.module,
        modules=len({part_name(module) if "*" in key.module else module for module in totals.modules}),
        operators=len(named),
    )


def shares(run: MemoryRun, live: Mapping[int, int]) -> tuple[ModuleShare, ...]:
    """Return the bytes of the allocations `live` by part of the model."""
    held: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    layers: defaultdict[str, set[str]] = defaultdict(set)
    for ident, at in places_of(run, live).items():
        module = run.places[at].module if 0 <= at < len(run.places) else ""
        if module:
            part = fold_part(module)
            held[part] += live[ident]
            tensors[part] += 1
            layers[part].add(part_name(module))
    return tuple(
        ModuleShare(module=part, modules=len(layers[part]), bytes=taken, tensors=tensors[part])
        for part, taken in held.most_common(MAX_OWNERS)
    )


def requesting_line(run: MemoryRun, event: int) -> tuple[SourceLine | None, str]:
    """Return line and operator of the request in row `event`; None and "" if it is none or they are
    unknown.
    """
    if event < 0 or run.action[event] != ALLOC:
        return None, ""
    place = run.place[event]
    record = run.places[place] if 0 <= place < len(run.places) else None
    return run.line(place), record.operator if record else ""


def places_of(run: MemoryRun, live: Container[int]) -> dict[int, int]:
    """Return the place of each allocation of `live`."""
    started = (block for segment in run.start for block in segment.blocks)
    place_of_ident = {block.ident: block.place for block in started if block.ident in live}
    for action, ident, place in zip(run.action, run.ident, run.place, strict=True):
        if action == ALLOC and ident in live:
            place_of_ident[ident] = place
    return place_of_ident
