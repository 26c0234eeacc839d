"""What is held for no reason but a name: ``out`` lives until the next step assigns it anew."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gapless.memory.early import freed_early
from gapless.memory.fits import fits
from gapless.memory.kinds import BACKWARD, Passes
from gapless.memory.trials import Where
from gapless.model.memory import ALLOC, DEFER, FREE, STEP, MemoryRun
from gapless.model.memory_report import Kept
from gapless.model.source import SourceLine, Stack

_LEAST = 2
"""Steps that must have left something behind: once may be chance."""
_SHARE = 0.005
_SMALL = 1 << 20
"""A part of the peak, and bytes, below which a name is not worth a line."""
_ROUNDING = 512
_IN_BACKWARD = ("backward", "gradient")
"""Kinds whose lines are those of the forward pass."""
_MOST = 5
_REPLAYED = 50_000
"""Rows up to which a run is replayed without each of them: up to about ten times, where it does not fit."""
_LASTING = frozenset(("parameter", "gradient", "optimizer", "workspace", "communication", "checkpoint"))
_COPIES = frozenset(("aten::to", "aten::_to_copy", "aten::copy_", "aten::cuda"))
"""What makes a batch; the next one may be on its way while this one is worked on."""
Ints = NDArray[np.int64]
Source = Callable[[str], str]


class _Life(NamedTuple):
    """An allocation: its rows from `made` to `ended` (-1: never), unused from `free` on (-1: unknown)."""

    made: int
    ended: int
    free: int
    size: int


def kept(run: MemoryRun, source: Source = lambda file: "", where: Where | None = None) -> tuple[Kept, ...]:
    """What is held at the peak though nothing uses it any more, by line.

    Where the run tells what is used when, that is each tensor between its last use and its end. Else it is
    what the next step gives back behind its like: the same number of as many from the same place. `source`
    gives the text of the script, for the variable's name. With `where`, what the script could delete by its
    name is left out of a replay there.
    """
    ends = [at for at, action in enumerate(run.action) if action == STEP]
    if len(ends) < _LEAST:
        return ()
    found = _unused(run) if run.used else _held_over(run, ends)
    if not found:
        return ()
    level = _level(run)
    peak = int(level.max())
    groups: defaultdict[tuple[SourceLine | None, str], list[int]] = defaultdict(list)
    for place in found:
        line = run.line(place)
        groups[line, "" if line and line.is_user else run.places[place].operator].append(place)
    at = int(level.argmax())
    loops, inner = _loops(run), _on_stack(run, at)
    begin = max((end for end in ends if end < at), default=-1)
    made: list[tuple[Kept, list[_Life]]] = []
    for (line, operator), places in groups.items():
        lives = [life for place in places for life in found[place]]
        after = int(_without(level, lives).max())
        steps = len(set(np.searchsorted(ends, [life.made for life in lives]).tolist()))
        if steps < _LEAST or peak - after < max(_SHARE * peak, _SMALL):
            continue
        # Only calls that began in the step of the peak still run then.
        own = any(begin < life.made and life.free <= at < life.ended for life in lives)
        item = Kept(
            line=line,
            operator=operator,
            name=_name(run.stack(places[0]), loops | inner if own else loops, source),
            bytes=sum(life.size for life in lives) // steps,
            tensors=max(round(len(lives) / steps), 1),
            steps=steps,
            before=peak,
            after=after,
            sure=bool(run.used),
        )
        made.append((item, lives))
    made.sort(key=lambda pair: (pair[0].after, pair[0].line.where if pair[0].line else ""))
    return tuple(_replayed(run, item, lives, where) for item, lives in made[:_MOST])


def _replayed(run: MemoryRun, item: Kept, lives: Sequence[_Life], where: Where | None) -> Kept:
    """`item` with what a run needs that deletes it after its last use."""
    if where is None or not (item.sure and item.name) or len(run) > _REPLAYED:
        return item
    less = fits(freed_early(run, {life.made: life.free for life in lives}), where)
    return msgspec.structs.replace(item, needs=less.needs)


def _unused(run: MemoryRun) -> dict[int, list[_Life]]:
    """By place the allocations that go on after their last use, and are not given back by backward itself."""
    ident_at = {ident: at for at, ident in enumerate(run.ident) if run.action[at] == ALLOC}
    passes = Passes(run, ident_at, -1)
    found: defaultdict[int, list[_Life]] = defaultdict(list)
    for place, by_step in _lives(run).items():
        lives = [life for of_step in by_step.values() for life in of_step if life.free >= 0]
        late = [one for one in lives if one.free < one.ended and not _by_backward(run, passes, one)]
        if late:  # then those that the run ends with are held in the same way
            found[place] = late + [one._replace(ended=len(run)) for one in lives if one.ended < 0]
    return dict(found)


def _by_backward(run: MemoryRun, passes: Passes, life: _Life) -> bool:
    ident = run.ident[life.made]
    made, ended = passes.made[ident], passes.ended[ident]
    return made != ended and passes.order[ended] == BACKWARD


def _held_over(run: MemoryRun, ends: Sequence[int]) -> dict[int, list[_Life]]:
    """By place the allocations that end in the next step behind their like: unused from their step's end."""
    found: dict[int, list[_Life]] = {}
    for place, by_step in _lives(run).items():
        known = run.places[place]
        if known.kind == "batch" or (not known.module and known.operator in _COPIES):
            continue
        late: list[_Life] = []
        for step, mine in by_step.items():
            theirs = by_step.get(step + 1, [])
            if len(mine) != len(theirs):
                continue
            until = ends[step + 1] if step + 1 < len(ends) else len(run)
            late += [
                one._replace(free=ends[step])
                for one, like in zip(mine, theirs, strict=True)
                if like.made < one.ended <= until
            ]
        if late:
            found[place] = late
    return found


def _lives(run: MemoryRun) -> dict[int, dict[int, list[_Life]]]:
    """All allocations whose line is known and that are not to last, by place and step."""
    ended = {
        ident: at
        for at, (action, ident) in enumerate(zip(run.action, run.ident, strict=True))
        if action in (FREE, DEFER)
    }
    traced = [bool(place.lines) and place.kind not in _LASTING for place in run.places]
    lives: defaultdict[int, defaultdict[int, list[_Life]]] = defaultdict(lambda: defaultdict(list))
    step = 0
    columns = zip(run.action, run.ident, run.size, run.place, strict=True)
    for at, (action, ident, size, place) in enumerate(columns):
        if action == STEP:
            step += 1
        elif action == ALLOC and 0 <= place < len(traced) and traced[place]:
            used = run.used[at] if run.used else -1
            lives[place][step].append(_Life(at, ended.get(ident, -1), used, _rounded(size)))
    return {place: dict(by_step) for place, by_step in lives.items()}


def _rounded(size: int) -> int:
    return -(-size // _ROUNDING) * _ROUNDING


def _level(run: MemoryRun) -> Ints:
    """What is asked for after each row, rounded as the allocator rounds it."""
    sizes = {b.ident: _rounded(b.requested) for one in run.start for b in one.blocks if b.ident >= 0}
    begun = sum(sizes.values())
    change = np.zeros(len(run), np.int64)
    for at, (action, ident, size) in enumerate(zip(run.action, run.ident, run.size, strict=True)):
        if action == ALLOC:
            change[at] = sizes[ident] = _rounded(size)
        elif action in (FREE, DEFER):
            change[at] = -sizes.pop(ident, 0)
    return begun + np.cumsum(change)


def _without(level: Ints, lives: Sequence[_Life]) -> Ints:
    """`level` if each of `lives` ended as soon as nothing uses it."""
    change = np.zeros(len(level) + 1, np.int64)
    for life in lives:
        change[life.free] -= life.size
        change[life.ended] += life.size
    return level + np.cumsum(change[:-1])


# The name ------------------------------------------------------------------------------------------


def _loops(run: MemoryRun) -> set[tuple[str, str]]:
    """Functions, as file and name, that call the optimizer: the loop is in one of them."""
    stepping = (run.line(at) for at, place in enumerate(run.places) if place.kind == "optimizer")
    return {(line.file, line.function) for line in stepping if line is not None and line.is_user}


def _on_stack(run: MemoryRun, row: int) -> set[tuple[str, str]]:
    """The user's functions that ask for what `row` asks for; in backward lines are those of forward."""
    place = run.place[row]
    if not 0 <= place < len(run.places) or run.places[place].kind in _IN_BACKWARD:
        return set()
    return {(line.file, line.function) for line in run.stack(place) if line.is_user}


def _name(stack: Stack, alive: set[tuple[str, str]], source: Source) -> str:
    """The variables that the innermost line of a function that runs on assigns; "" where none is known."""
    for line in stack:
        if (line.file, line.function) in alive:
            return _assigned(source(line.file), line)
    return ""


def _assigned(text: str, line: SourceLine) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    found = ""
    for node in ast.walk(tree):  # outer statements come first
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if node.lineno <= line.line <= (node.end_lineno or node.lineno):
            found = _names(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    return found


def _names(target: ast.expr) -> str:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    if all(isinstance(part, ast.Name) for part in parts):
        return ", ".join(part.id for part in parts if isinstance(part, ast.Name) and part.id != "_")
    return ""
