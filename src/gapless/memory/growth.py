"""What grows from step to step: memory that each step, or every Nth, asks for and none gives back."""

from __future__ import annotations

from collections import defaultdict

from gapless.model.memory import ALLOC, DEFER, FREE, STEP, Kind, MemoryRun
from gapless.model.memory_report import Growth
from gapless.model.pace import SURE, pace, steady
from gapless.model.source import SourceLine

_MOST = 10

Key = tuple[SourceLine | None, str, Kind]


def growth(run: MemoryRun) -> tuple[Growth, ...]:
    """What stays of steps at a steady pace, by place, the most bytes a step first."""
    steps = sum(action == STEP for action in run.action)
    if not pace(range(steps), steps):
        return ()
    kept_every = {holder.every for holder in run.holders}
    found = []
    for (line, operator, kind), by_step in _left(run).items():
        every = pace(by_step, steps)
        numbers = steady(by_step, steps, every) if every else ()
        if not numbers or (len(numbers) < SURE and every not in kept_every):
            continue
        amounts = [by_step[number] for number in numbers]
        found.append(
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
    found.sort(
        key=lambda one: (-one.bytes / one.every, one.line.where if one.line else "", one.operator, one.kind)
    )
    return tuple(found[:_MOST])


def _left(run: MemoryRun) -> dict[Key, dict[int, tuple[int, int]]]:
    """Bytes and tensors that are never given back, by place and by the step that asked for them.

    Where a name was seen to keep them, they may end with the program: what is given back after the last step
    says nothing then.
    """
    stop = len(run)
    if run.holders:
        stop -= run.action[::-1].index(STEP)
    ended = {
        ident for action, ident in zip(run.action[:stop], run.ident, strict=False) if action in (FREE, DEFER)
    }
    found: defaultdict[Key, dict[int, tuple[int, int]]] = defaultdict(dict)
    keys: dict[int, Key] = {}
    step = 0
    for action, ident, size, place in zip(run.action[:stop], run.ident, run.size, run.place, strict=False):
        if action == STEP:
            step += 1
        elif action == ALLOC and ident not in ended:
            key = keys.get(place)
            if key is None:
                key = keys[place] = _key(run, place)
            held, tensors = found[key].get(step, (0, 0))
            found[key][step] = (held + size, tensors + 1)
    return found


def _key(run: MemoryRun, place: int) -> Key:
    line = run.line(place)
    known = run.places[place] if 0 <= place < len(run.places) else None
    operator = "" if known is None or (line and line.is_user) else known.operator
    return line, operator, known.kind if known else "unknown"
