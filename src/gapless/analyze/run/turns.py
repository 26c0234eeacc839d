"""Decide whether two calls follow each other in each pass of one loop, from its source."""

from __future__ import annotations

import ast
from functools import partial

from gapless.analyze.run.loop import LOOPS, SCOPES, ReadSource, nodes_around, tree_of
from gapless.files.input import source_text
from gapless.model import Stack
from gapless.model.tally import StepTally

_EXITS = (ast.Continue, ast.Break, ast.Return, ast.Raise)


def tally(read: ReadSource = source_text) -> StepTally:
    """Return a tally that reads the source: one optimizer stepping at two lines of a pass is one
    iteration."""
    return StepTally(partial(are_in_turn, read=read))


def are_in_turn(stack: Stack, other: Stack, read: ReadSource = source_text) -> bool:
    """Whether both calls are made in each pass of the innermost loop around them.

    The stacks part where one function makes both calls, at two lines. False if one line is in a loop that the
    other is not in, if they are in exclusive branches, or if the source cannot be read.
    """
    for first, second in zip(reversed(stack), reversed(other), strict=False):
        if (first.file, first.function) != (second.file, second.function):
            return False
        if first.line != second.line:
            tree = tree_of(first.file, read) if first.is_user else None
            low, high = sorted((first.line, second.line))
            return tree is not None and _same_pass(tree, low, high)
    return False


def _same_pass(tree: ast.Module, low: int, high: int) -> bool:
    """Whether lines `low` and `high` are in the body of one loop and not exclusive."""
    around = [_innermost(tree, line) for line in (low, high)]
    loop = around[0]
    if loop is None or loop is not around[1]:
        return False
    return not any(_exclusive(node, low, high) for node in (loop, *nodes_around(loop, low, high)))


def _innermost(tree: ast.Module, line: int) -> ast.AST | None:
    """Return the loop around `line` within its function."""
    loop: ast.AST | None = None
    for node in nodes_around(tree, line, line):
        if isinstance(node, SCOPES):
            loop = None
        elif isinstance(node, LOOPS) and any(_within(part, line) for part in node.body):
            loop = node
    return loop


def _exclusive(node: ast.AST, low: int, high: int) -> bool:
    """Whether `node` executes either `low` or `high`, never both."""
    blocks = [
        block
        for name in ("body", "orelse", "handlers", "cases")
        if isinstance(block := getattr(node, name, None), list)
    ]
    if isinstance(node, ast.If | ast.Match | ast.Try):
        if isinstance(node, ast.Match | ast.Try):
            blocks = [[part] for block in blocks[1:] for part in block] + blocks[:1]
        at = [
            next((n for n, block in enumerate(blocks) if _any_within(block, line)), -1)
            for line in (low, high)
        ]
        return at[0] != at[1] and -1 not in at
    return any(_leaves(part, low) for block in blocks for part in block if not _within(part, high))


def _leaves(statement: ast.stmt, line: int) -> bool:
    """Whether the branch of `statement` that contains `line` leaves the pass."""
    if not _within(statement, line):
        return False
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.If) and _within(node, line)]
    for node in inner:
        block = node.body if _any_within(node.body, line) else node.orelse
        if block and _any_within(block, line) and isinstance(block[-1], _EXITS):
            return True
    return False


def _any_within(block: list[ast.stmt], line: int) -> bool:
    return any(_within(part, line) for part in block)


def _within(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None and isinstance(node, ast.match_case):
        return _any_within(node.body, line)
    return first is not None and first <= line <= (last or first)
