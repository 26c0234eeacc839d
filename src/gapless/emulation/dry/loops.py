"""Whether a line decides if a loop continues, or if a check fails: read from its source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from functools import lru_cache

from gapless.model import SourceLine

_MAX_FRAMES = 12
"""Frames searched for a loop: those further out rarely decide on a read; parsing them takes time."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def may_repeat_loop(stack: Sequence[SourceLine]) -> bool:
    """Whether a read at `stack`, innermost frame first, may keep a ``while`` loop going.

    It is in the loop's condition or in one that leaves the loop, or in a function called there; not inside
    a ``for``, which ends by itself.
    """
    for position, frame in enumerate(stack[:_MAX_FRAMES]):
        decides = _decides_loop(frame.file, frame.line, position == 0)
        if decides is not None:
            return decides
    return False


def value_to_pass(stack: Sequence[SourceLine]) -> bool | None:
    """Return the value of a bool read at `stack` with which the line does not raise; None if it has no check.

    Checks of a script are expected to pass, as ``if (x < 0).any(): raise …`` and ``assert …``.
    """
    return _value_to_pass_at(stack[0].file, stack[0].line) if stack else None


@lru_cache(1024)
def _value_to_pass_at(file: str, line: int) -> bool | None:
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assert) and _within(node, line):
            return _required_truth(node.test)
        if isinstance(node, ast.If) and _within(node.test, line):
            if isinstance(node.body[-1], ast.Raise) and len(node.body) == 1 and not node.orelse:
                truth = _required_truth(node.test)
                return None if truth is None else not truth
            return None
    return None


def _required_truth(test: ast.expr) -> bool | None:
    """Return the value that each read in a condition needs for it to hold; None if that is unclear."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _required_truth(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = {_required_truth(operand) for operand in test.values}
        return parts.pop() if len(parts) == 1 else None
    return None if any(_changes_truth(node) for node in ast.walk(test)) else True


def _changes_truth(node: ast.AST) -> bool:
    """Whether `node` changes the meaning of a bool read inside it."""
    if isinstance(node, ast.Compare):
        inside = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node)}
        return bool(inside & {"item", "bool", "tolist"})
    return isinstance(node, (ast.Not, ast.IfExp))


@lru_cache(1024)
def _decides_loop(file: str, line: int, innermost: bool) -> bool | None:
    """Whether the line decides if its innermost loop continues; None if no loop is around it."""
    tree = _tree(file)
    inner = _innermost_loop(tree, line) if tree is not None else None
    if inner is None:
        return None
    if not isinstance(inner, ast.While):
        return False
    if _within(inner.test, line):
        return True
    names = _assigned_names(inner, line) if innermost else set()
    for node in ast.walk(inner):
        if isinstance(node, ast.If) and any(
            _leaves_loop(statement) for statement in (*node.body, *node.orelse)
        ):
            used = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
            if _within(node.test, line) or names & used:
                return True
    used = {part.id for part in ast.walk(inner.test) if isinstance(part, ast.Name)}
    return bool(names & used)


@lru_cache(64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _innermost_loop(tree: ast.Module, line: int) -> ast.AST | None:
    """Return the innermost loop around the line in the same function."""
    loop: ast.AST | None = None
    node: ast.AST = tree
    while True:
        following = next((child for child in ast.iter_child_nodes(node) if _within(child, line)), None)
        if following is None:
            return loop
        if isinstance(following, _SCOPES):
            loop = None
        elif isinstance(following, (ast.For, ast.AsyncFor, ast.While)):
            loop = following
        node = following


def _within(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    if first is None:
        return any(_within(child, line) for child in ast.iter_child_nodes(node))
    return first <= line <= (getattr(node, "end_lineno", None) or first)


def _assigned_names(loop: ast.While, line: int) -> set[str]:
    """Return the names that the statement at the line assigns."""
    names: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _within(node, line):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name))
    return names


def _leaves_loop(node: ast.AST) -> bool:
    return any(isinstance(part, (ast.Break, ast.Return, ast.Raise)) for part in ast.walk(node))
