"""The training loop: told from the stacks of step marks and the source they point into.

It separates the first step from the set-up before it: both come before the first step mark.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gapless.model import Mark, SourceLine, Stack

ReadSource = Callable[[str], str]
"""Gives the text of a source file, or raises OSError, SyntaxError or UnicodeDecodeError."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ENOUGH_MARKS = 50


@dataclass(frozen=True)
class Loop:
    """The lines `first` to `last` of `file`, both included."""

    file: str
    first: int
    last: int

    def holds(self, stack: Stack) -> bool:
        """Whether some frame of `stack` is inside the loop."""
        return any(frame.file == self.file and self.first <= frame.line <= self.last for frame in stack)


def read_source(file: str) -> str:
    """The text of `file`, in the encoding it declares."""
    with open(file, "rb") as stream:
        data = stream.read()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding)


def training_loop(
    steps: Sequence[Mark], marks: Sequence[Mark], read: ReadSource = read_source
) -> Loop | None:
    """The innermost loop that holds every step mark and the work of the steps; None where none is found.

    `steps` are the marks that end steps, `marks` all of the session's. A loop that only steps several
    optimizers is told apart by the backward passes: they happen elsewhere.
    """
    if not steps:
        return None
    stacks = [mark.stack for mark in steps[:_ENOUGH_MARKS]]
    work = [mark.stack for mark in marks if mark.kind == "backward" and mark.stack][:_ENOUGH_MARKS]
    if not work:
        work = [mark.stack for mark in marks if mark.kind == "batch" and mark.stack][:_ENOUGH_MARKS]
    sources: dict[str, ast.Module | None] = {}
    for frames in _common_frames(stacks):
        file = frames[0].file
        if file not in sources:
            sources[file] = _parse(file, frames[0], read)
        tree = sources[file]
        if tree is None:
            continue
        for loop in _loops_around(tree, file, [frame.line for frame in frames]):
            if all(loop.holds(stack) for stack in work):
                return loop
    return None


def _common_frames(stacks: Sequence[Stack]) -> Iterator[tuple[SourceLine, ...]]:
    """The frames that all `stacks` have in common, innermost first, each as its line in every stack."""
    common: list[tuple[SourceLine, ...]] = []
    for frames in zip(*(reversed(stack) for stack in stacks), strict=False):
        if len({(frame.file, frame.function) for frame in frames}) > 1:
            break
        common.append(frames)
        if len({frame.line for frame in frames}) > 1:
            break  # the calls part here: what is below are different frames
    return reversed(common)


def _parse(file: str, frame: SourceLine, read: ReadSource) -> ast.Module | None:
    """The syntax tree of `file`; None where it cannot be read or is no longer what was run."""
    try:
        text = read(file)
        lines = text.splitlines()
        if frame.code and (frame.line > len(lines) or lines[frame.line - 1].strip() != frame.code):
            return None
        return ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None


def _loops_around(tree: ast.Module, file: str, lines: Sequence[int]) -> list[Loop]:
    """The loops that hold all `lines` and belong to the same function as they do, innermost first."""

    def around(kinds: tuple[type[ast.AST], ...]) -> list[tuple[int, int]]:
        spans = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, kinds) and isinstance(node, ast.expr | ast.stmt)
        ]
        return sorted((span for span in spans if span[0] <= low and high <= span[1]), reverse=True)

    low, high = min(lines), max(lines)
    scopes = around(_SCOPES)
    begin = scopes[0][0] if scopes else 0
    return [Loop(file, first, last) for first, last in around(_LOOPS) if first >= begin]
