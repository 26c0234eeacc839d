"""Find the training loop from the stacks of step marks and the source they point into.

It separates the first step from the set-up before it: both come before the first step mark.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from gapless.files.input import source_text
from gapless.model import SourceLine, Stack, StepMark
from gapless.model.tally import UNTRAINED

ReadSource = Callable[[str], str]
"""Returns the text of a source file, or raises OSError, SyntaxError or UnicodeDecodeError."""

LOOPS = (ast.For, ast.AsyncFor, ast.While)
"""Loop statements."""
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
"""Nodes that run in a frame of their own."""
_MAX_MARKS = 50
"""Marks compared: later ones have the same frames in common."""


@dataclass(frozen=True)
class Loop:
    """The lines `first` to `last` of `file`, both included.

    `inner` are the first and last line in it on the way to the steps: those of the next inner loop, or of the
    calls that lead there. `target` is what a ``for`` loop assigns to, as source text.
    """

    file: str
    first: int
    last: int
    inner: tuple[int, int] = (0, 0)
    target: str = ""

    def holds(self, stack: Stack) -> bool:
        """Whether some frame of `stack` is inside the loop."""
        return any(frame.file == self.file and self.first <= frame.line <= self.last for frame in stack)


def training_loops(
    steps: Sequence[StepMark], marks: Sequence[StepMark], read: ReadSource = source_text
) -> tuple[Loop, ...]:
    """Return the training loop and the loops around it, innermost first, in whatever functions they are.

    `steps` are the marks that end steps, `marks` all marks of the session. A loop that only steps several
    optimizers is recognised by the backward passes outside it.
    """
    if not steps:
        return ()
    # A module's call ends inside torch, whose own loops call the hooks.
    ends = (outside_torch(mark) if mark.kind in UNTRAINED else mark for mark in steps[:_MAX_MARKS])
    stacks = [mark.stack for mark in ends]
    work = [mark.stack for mark in marks if mark.kind == "backward" and mark.stack][:_MAX_MARKS]
    if not work and steps[0].kind not in UNTRAINED:  # a model may be called many times for a batch
        work = [mark.stack for mark in marks if mark.kind == "batch" and mark.stack][:_MAX_MARKS]
    sources: dict[str, ast.Module | None] = {}
    loops: list[Loop] = []
    for frames in _common_frames(stacks):
        file = frames[0].file
        if file not in sources:
            sources[file] = _tree_as_run(frames[0], read)
        tree = sources[file]
        if tree is None or frames[0].library == "python":  # asyncio's event loop is no training loop
            continue
        for loop in _loops_around(tree, file, [frame.line for frame in frames]):
            if loops or all(loop.holds(stack) for stack in work):
                loops.append(loop)
    return tuple(loops)


def outside_torch(mark: StepMark) -> StepMark:
    """Return `mark` at the call of the optimizer's step, without frames inside torch."""
    inside = itertools.takewhile(lambda frame: frame.library == "torch", mark.stack)
    return msgspec.structs.replace(mark, stack=mark.stack[len(list(inside)) :])


def tree_of(file: str, read: ReadSource = source_text) -> ast.Module | None:
    """Return the syntax tree of `file`; None if it cannot be read."""
    try:
        return parse(read(file))
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(64)
def parse(text: str) -> ast.Module | None:
    """Return the syntax tree of `text`; None if it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two if it nests too deep
        return None


def _tree_as_run(frame: SourceLine, read: ReadSource) -> ast.Module | None:
    """Return the syntax tree of the frame's file; None if it cannot be read or was changed after the run."""
    tree = tree_of(frame.file, read)
    lines = read(frame.file).splitlines() if tree is not None else []
    if frame.code and not (0 < frame.line <= len(lines) and lines[frame.line - 1].strip() == frame.code):
        return None
    return tree


def body_of(loop: Loop, read: ReadSource = source_text) -> list[ast.stmt]:
    """Return the statements of `loop` without its ``else``; empty if its source cannot be read."""
    node = node_of(loop, read)
    return list(node.body) if node is not None else []


def node_of(loop: Loop, read: ReadSource = source_text) -> ast.For | ast.AsyncFor | ast.While | None:
    """Return `loop` in the syntax tree of its file."""
    tree = tree_of(loop.file, read)
    at = loop.first, loop.last
    loops = (node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, LOOPS))
    return next((node for node in loops if (_first(node), _last(node)) == at), None)


def is_in_loop(stack: Stack, read: ReadSource = source_text) -> bool | None:
    """Whether a loop of the user's contains one of the calls of `stack`; None if unknown.

    The first line of a ``for`` is not inside it: its iterable is computed once. What called the script does
    not count.
    """
    answers: set[bool | None] = set()
    for frame in stack:
        if frame.is_user:
            answers.add(_is_in_repeated_code(frame, read))
            if frame.function == "<module>":
                break
    return True if True in answers else None if None in answers or not answers else False


@lru_cache(4096)
def _is_in_repeated_code(frame: SourceLine, read: ReadSource) -> bool | None:
    """Whether a loop repeats the call at `frame`; None if its source is unknown or changed."""
    tree = _tree_as_run(frame, read) if frame.code else None
    return None if tree is None else _is_line_repeated(tree, frame.line)


def _is_line_repeated(tree: ast.Module, line: int) -> bool:
    """Whether a loop or comprehension in the function around `line` repeats it."""
    holding = list(nodes_around(tree, line, line))
    begin = max((_first(node) for node in holding if isinstance(node, SCOPES)), default=0)
    for node in holding:
        if isinstance(node, LOOPS):
            first = _first(node) if isinstance(node, ast.While) else _first(node.body[0])
            if begin <= _first(node) and first <= line <= _last(node.body[-1]):
                return True
        elif isinstance(node, _COMPREHENSIONS) and begin <= _first(node):
            return True
    return False


def _common_frames(stacks: Sequence[Stack]) -> Iterator[tuple[SourceLine, ...]]:
    """Return the frames that all `stacks` share, innermost first, each as its line in every stack."""
    common: list[tuple[SourceLine, ...]] = []
    for frames in zip(*(reversed(stack) for stack in stacks), strict=False):
        if len({(frame.file, frame.function) for frame in frames}) > 1:
            break
        common.append(frames)
        if len({frame.line for frame in frames}) > 1:
            break  # the calls part here: frames below it differ
    return reversed(common)


def _loops_around(tree: ast.Module, file: str, lines: Sequence[int]) -> list[Loop]:
    """Return the loops that contain all `lines` and belong to the same function, innermost first."""
    low, high = min(lines), max(lines)

    holding = list(nodes_around(tree, low, high))

    def around(kinds: tuple[type[ast.AST], ...]) -> list[ast.AST]:
        matching = [node for node in holding if isinstance(node, kinds)]
        return sorted(matching, key=lambda node: (_first(node), -_last(node)), reverse=True)

    scopes = around(SCOPES)
    begin = _first(scopes[0]) if scopes else 0
    loops: list[Loop] = []
    inner = low, high
    for node in around(LOOPS):
        if _first(node) < begin:
            continue
        target = ast.unparse(node.target) if isinstance(node, ast.For | ast.AsyncFor) else ""
        loops.append(Loop(file, _first(node), _last(node), inner, target))
        inner = _first(node), _last(node)
    return loops


def nodes_around(tree: ast.AST, low: int, high: int) -> Iterator[ast.AST]:
    """Yield the nodes inside `tree` that contain these lines."""
    for node in ast.iter_child_nodes(tree):
        placed = hasattr(node, "lineno")
        if placed and _first(node) <= low and high <= _last(node):
            yield node
        if not placed or _outermost(node) <= low <= high <= _last(node):
            yield from nodes_around(node, low, high)


def _outermost(node: ast.AST) -> int:
    """Return the first line of `node`, its decorators included."""
    return min((_first(each) for each in getattr(node, "decorator_list", ())), default=_first(node))


def _first(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _last(node: ast.AST) -> int:
    return getattr(node, "end_lineno", None) or _first(node)
