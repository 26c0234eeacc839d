"""Find memory that only a variable name keeps: ``out`` lives until the next step assigns it anew."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapless.memory.early import free_earlier
from gapless.memory.fits import fits
from gapless.memory.kinds import BACKWARD, Passes
from gapless.memory.trials import TrialConditions
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_report import Kept
from gapless.model.source import SourceLine, Stack

_MIN_STEPS = 2
"""Steps that must leave something behind: one may be chance."""
_MIN_SHARE_TO_REPORT = 0.005
"""Savings below this share of the peak are not reported: they hardly matter."""
_MIN_BYTES_TO_REPORT = 1 << 20
"""Nor are those below this many bytes, the allocator's largest small block."""
_BLOCK_BYTES = 512
"""The allocator's granularity."""
_BACKWARD_KINDS = ("backward", "gradient")
"""Kinds whose lines are of the forward pass although they are requested in backward."""
_MAX_ROWS = 5
"""Rows of a report; smaller savings are cut off."""
_MAX_ROWS_TO_REPLAY = 50_000
"""Longer runs are not replayed for each row: a run that does not fit takes about ten replays."""
_PERSISTENT_KINDS = frozenset(
    ("parameter", "gradient", "optimizer", "workspace", "communication", "checkpoint")
)
"""Kinds that are meant to outlive a step."""
_COPY_OPERATORS = frozenset(("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda"))
"""Operators that make a batch; the next batch may be copied while this one is used."""
Ints = NDArray[np.int64]
Source = Callable[[str], str]


class _Life(NamedTuple):
    """An allocation: rows of its start and end (-1: never) and from which it is unused (-1: unknown);
    bytes.
    """

    start: int
    end: int
    free: int
    size: int


def find_kept(
    run: MemoryRun, source: Source = lambda file: "", where: TrialConditions | None = None
) -> tuple[Kept, ...]:
    """Return memory held at the peak although nothing uses it any more, by line.

    If the run records uses, that is each tensor between its last use and its end. Else it is what the next
    step frees only after it has allocated its successor from the same place. `source` returns the text of a
    file, to find variable names. With `where`, `Kept.needs` is the memory needed there if the script deleted
    the variable.
    """
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    if len(ends) < _MIN_STEPS:
        return ()
    lives_by_place = _find_unused(run) if run.used else _find_held_over(run, ends)
    if not lives_by_place:
        return ()
    level = _requested_after_rows(run)
    peak = int(level.max())
    groups: defaultdict[tuple[SourceLine | None, str], list[int]] = defaultdict(list)
    for place in lives_by_place:
        line = run.line(place)
        groups[line, "" if line and line.is_user else run.places[place].operator].append(place)
    at = int(level.argmax())
    loops, inner = _training_loops(run), _user_functions(run, at)
    begin = max((end for end in ends if end < at), default=-1)
    items: list[tuple[Kept, list[_Life]]] = []
    for (line, operator), places in groups.items():
        lives = [life for place in places for life in lives_by_place[place]]
        after = int(_without(level, lives).max())
        steps = len(set(np.searchsorted(ends, [life.start for life in lives]).tolist()))
        if steps < _MIN_STEPS or peak - after < max(_MIN_SHARE_TO_REPORT * peak, _MIN_BYTES_TO_REPORT):
            continue
        # Only calls that began in the step of the peak still run then.
        own = any(begin < life.start and life.free <= at < life.end for life in lives)
        item = Kept(
            line=line,
            operator=operator,
            name=_variable_name(run.stack(places[0]), loops | inner if own else loops, source),
            bytes=sum(life.size for life in lives) // steps,
            tensors=max(round(len(lives) / steps), 1),
            steps=steps,
            before=peak,
            after=after,
            sure=bool(run.used),
        )
        items.append((item, lives))
    items.sort(key=lambda pair: (pair[0].after, pair[0].line.where if pair[0].line else ""))
    return tuple(_add_memory_needs(run, item, lives, where) for item, lives in items[:_MAX_ROWS])


def _add_memory_needs(
    run: MemoryRun, item: Kept, lives: Sequence[_Life], where: TrialConditions | None
) -> Kept:
    """Return `item` with the memory needed if its tensors are deleted after their last use."""
    if where is None or not (item.sure and item.name) or len(run) > _MAX_ROWS_TO_REPLAY:
        return item
    less = fits(free_earlier(run, {life.start: life.free for life in lives}), where)
    return msgspec.structs.replace(item, needs=less.needs)


def _find_unused(run: MemoryRun) -> dict[int, list[_Life]]:
    """Return allocations that outlive their last use and are not freed by backward itself, by place."""
    ident_at = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    passes = Passes(run, ident_at, -1)
    unused: defaultdict[int, list[_Life]] = defaultdict(list)
    for place, by_step in _lives(run).items():
        lives = [life for of_step in by_step.values() for life in of_step if life.free >= 0]
        late = [
            life for life in lives if life.free < life.end and not _is_freed_by_backward(run, passes, life)
        ]
        if late:  # then those that the run ends with are held in the same way
            unused[place] = late + [life._replace(end=len(run)) for life in lives if life.end < 0]
    return dict(unused)


def _is_freed_by_backward(run: MemoryRun, passes: Passes, life: _Life) -> bool:
    ident = run.ident[life.start]
    start, end = passes.made_in[ident], passes.ended_in[ident]
    return start != end and passes.order[end] == BACKWARD


def _find_held_over(run: MemoryRun, ends: Sequence[int]) -> dict[int, list[_Life]]:
    """Return allocations that end in the next step after their successor started, by place; unused from step
    end.
    """
    held_over: dict[int, list[_Life]] = {}
    for place, by_step in _lives(run).items():
        record = run.places[place]
        if record.kind == "batch" or (not record.module and record.operator in _COPY_OPERATORS):
            continue
        late: list[_Life] = []
        for step, mine in by_step.items():
            theirs = by_step.get(step + 1, [])
            if len(mine) != len(theirs):
                continue
            until = ends[step + 1] if step + 1 < len(ends) else len(run)
            late += [
                life._replace(free=ends[step])
                for life, like in zip(mine, theirs, strict=True)
                if like.start < life.end <= until
            ]
        if late:
            held_over[place] = late
    return held_over


def _lives(run: MemoryRun) -> dict[int, dict[int, list[_Life]]]:
    """Return all allocations with a known line that should not persist, by place and step."""
    ended = {
        ident: at
        for at, (action, ident) in enumerate(zip(run.action, run.ident, strict=True))
        if action in (FREE, DEFER)
    }
    traced = [bool(place.lines) and place.kind not in _PERSISTENT_KINDS for place in run.places]
    lives: defaultdict[int, defaultdict[int, list[_Life]]] = defaultdict(lambda: defaultdict(list))
    step = 0
    columns = zip(run.action, run.ident, run.size, run.place, strict=True)
    for at, (action, ident, size, place) in enumerate(columns):
        if action == STEP:
            step += 1
        elif action == ALLOC and 0 <= place < len(traced) and traced[place]:
            used = run.used[at] if run.used else -1
            lives[place][step].append(_Life(at, ended.get(ident, -1), used, _round_up(size)))
    return {place: dict(by_step) for place, by_step in lives.items()}


def _round_up(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _requested_after_rows(run: MemoryRun) -> Ints:
    """Return the requested bytes after each row, rounded as the allocator rounds."""
    sizes = {b.ident: _round_up(b.requested) for segment in run.start for b in segment.blocks if b.ident >= 0}
    begun = sum(sizes.values())
    change = np.zeros(len(run), np.int64)
    for at, (action, ident, size) in enumerate(zip(run.action, run.ident, run.size, strict=True)):
        if action == ALLOC:
            change[at] = sizes[ident] = _round_up(size)
        elif action in (FREE, DEFER):
            change[at] = -sizes.pop(ident, 0)
    return begun + np.cumsum(change)


def _without(level: Ints, lives: Sequence[_Life]) -> Ints:
    """Return `level` as it would be if each of `lives` ended at its last use."""
    change = np.zeros(len(level) + 1, np.int64)
    for life in lives:
        change[life.free] -= life.size
        change[life.end] += life.size
    return level + np.cumsum(change[:-1])


# The name ------------------------------------------------------------------------------------------


def _training_loops(run: MemoryRun) -> set[tuple[str, str]]:
    """Return file and name of the functions that call the optimizer: one of them has the training loop."""
    stepping = (run.line(at) for at, place in enumerate(run.places) if place.kind == "optimizer")
    return {(line.file, line.function) for line in stepping if line is not None and line.is_user}


def _user_functions(run: MemoryRun, row: int) -> set[tuple[str, str]]:
    """Return file and name of the user's functions that call `row`; none for backward, whose lines are
    forward's.
    """
    place = run.place[row]
    if not 0 <= place < len(run.places) or run.places[place].kind in _BACKWARD_KINDS:
        return set()
    return {(line.file, line.function) for line in run.stack(place) if line.is_user}


def _variable_name(stack: Stack, alive: set[tuple[str, str]], source: Source) -> str:
    """Return the variables assigned by the innermost line in a function in `alive`; "" if unknown."""
    for line in stack:
        if (line.file, line.function) in alive:
            return _assignment_target(source(line.file), line)
    return ""


def _assignment_target(text: str, line: SourceLine) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names = ""
    for node in ast.walk(tree):  # yields outer statements first
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if node.lineno <= line.line <= (node.end_lineno or node.lineno):
            names = _target_names(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    return names


def _target_names(target: ast.expr) -> str:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    if all(isinstance(part, ast.Name) for part in parts):
        return ", ".join(part.id for part in parts if isinstance(part, ast.Name) and part.id != "_")
    return ""
