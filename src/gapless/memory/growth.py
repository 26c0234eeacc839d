"""What grows from step to step: memory that each step asks for and no step gives back."""

from __future__ import annotations

from collections import defaultdict

from gapless.model.memory import ALLOC, DEFER, FREE, STEP, Kind, MemoryRun
from gapless.model.memory_report import Growth
from gapless.model.source import SourceLine

WARM_UP = 2
"""Steps in which what stays is made: the optimizer's state, caches, workspaces."""
_LEAST = 4
"""Steps after those that must each have left something behind."""
_KEPT = 1
"""What the last steps hold may still be given back: a step's loss lives until the next one's."""
_MOST = 10

Key = tuple[SourceLine | None, str, Kind]


def growth(run: MemoryRun) -> tuple[Growth, ...]:
    """What stays of each step from the third on, by place, the most bytes first."""
    steps = sum(action == STEP for action in run.action)
    last = steps - _KEPT
    if last - WARM_UP < _LEAST:
        return ()
    left = _left(run, last)
    found = []
    for (line, operator, kind), by_step in left.items():
        wanted = last - WARM_UP
        if len(by_step) < wanted:  # some step left nothing here
            continue
        sizes = [size for size, _ in by_step.values()]
        found.append(
            Growth(
                line=line,
                operator=operator,
                kind=kind,
                bytes=sum(sizes) // wanted,
                tensors=sum(tensors for _, tensors in by_step.values()) / wanted,
                steps=wanted,
            )
        )
    found.sort(key=lambda one: (-one.bytes, one.line.where if one.line else "", one.operator, one.kind))
    return tuple(found[:_MOST])


def _left(run: MemoryRun, last: int) -> dict[Key, dict[int, tuple[int, int]]]:
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
    for action, ident, size, place in zip(run.action, run.ident, run.size, run.place, strict=True):
        if action == STEP:
            step += 1
        elif action == ALLOC and ident not in ended and WARM_UP <= step < last:
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
