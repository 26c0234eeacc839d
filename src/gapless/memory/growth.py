"""Find memory that grows: requested in each step or every Nth step, and never freed."""

from __future__ import annotations

from collections import defaultdict

from gapless.model.memory import ALLOC, DEFER, FREE, STEP, Kind, MemoryRun
from gapless.model.memory_report import Growth
from gapless.model.pace import MIN_REPEATS, growth_interval, steady_steps
from gapless.model.source import SourceLine

_MAX_ROWS = 10
"""Rows of a report; smaller ones are cut off."""

GrowthKey = tuple[SourceLine | None, str, Kind]


def find_growth(run: MemoryRun) -> tuple[Growth, ...]:
    """Return what steps leave behind at a steady pace, by place, most bytes per step first."""
    steps = sum(action == STEP for action in run.action)
    if not growth_interval(range(steps), steps):
        return ()
    kept_every = {holder.every for holder in run.holders}
    growths = []
    for (line, operator, kind), by_step in _unfreed_by_step(run).items():
        every = growth_interval(by_step, steps)
        numbers = steady_steps(by_step, steps, every) if every else ()
        if not numbers or (len(numbers) < MIN_REPEATS and every not in kept_every):
            continue
        amounts = [by_step[number] for number in numbers]
        growths.append(
            Growth(
                line=line,
                operator=operator,
                kind=kind,
                bytes=sum(size for size, _ in amounts) // len(amounts),
                tensors=sum(tensors for _, tensors in amounts) / len(amounts),
                steps=len(amounts),
                every=every,
            )
        )
    growths.sort(
        key=lambda item: (
            -item.bytes / item.every,
            item.line.where if item.line else "",
            item.operator,
            item.kind,
        )
    )
    return tuple(growths[:_MAX_ROWS])


def _unfreed_by_step(run: MemoryRun) -> dict[GrowthKey, dict[int, tuple[int, int]]]:
    """Return bytes and tensors that are never freed, by place and by the step that requested them.

    If the run recorded which variable holds them, they may be freed as the program ends: frees after the last
    step are ignored then.
    """
    stop = len(run)
    if run.holders:
        stop -= run.action[::-1].index(STEP)
    ended = {
        ident for action, ident in zip(run.action[:stop], run.ident, strict=False) if action in (FREE, DEFER)
    }
    left: defaultdict[GrowthKey, dict[int, tuple[int, int]]] = defaultdict(dict)
    keys: dict[int, GrowthKey] = {}
    step = 0
    for action, ident, size, place in zip(run.action[:stop], run.ident, run.size, run.place, strict=False):
        if action == STEP:
            step += 1
        elif action == ALLOC and ident not in ended:
            key = keys.get(place)
            if key is None:
                key = keys[place] = _key(run, place)
            held, tensors = left[key].get(step, (0, 0))
            left[key][step] = (held + size, tensors + 1)
    return left


def _key(run: MemoryRun, place: int) -> GrowthKey:
    line = run.line(place)
    place_record = run.places[place] if 0 <= place < len(run.places) else None
    operator = "" if place_record is None or (line and line.is_user) else place_record.operator
    return line, operator, place_record.kind if place_record else "unknown"
