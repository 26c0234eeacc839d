"""Whether a line decides that a loop goes on: read off its source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from functools import lru_cache

from gapless.model import SourceLine

_FRAMES = 12
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def repeats(stack: Sequence[SourceLine]) -> bool:
    """Whether a read at `stack`, innermost frame first, may be what keeps a ``while`` loop going.

    It is asked for in the loop's own condition, or in one that leaves the loop. A function that it is in may
    be called there; not from within a ``for``, which ends by itself.
    """
    for position, frame in enumerate(stack[:_FRAMES]):
        found = _decides(frame.file, frame.line, position == 0)
        if found is not None:
            return found
    return False


def passes(stack: Sequence[SourceLine]) -> bool | None:
    """What a bool that is read at `stack` must be for the line not to raise; None where it does not say.

    Nobody runs a script so that its checks fail: of ``if (x < 0).any(): raise …`` and ``assert …`` the answer
    is known.
    """
    return _passes(stack[0].file, stack[0].line) if stack else None


@lru_cache(1024)
def _passes(file: str, line: int) -> bool | None:
    tree = _tree(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assert) and _within(node, line):
            return _truth(node.test)
        if isinstance(node, ast.If) and _within(node.test, line):
            if isinstance(node.body[-1], ast.Raise) and len(node.body) == 1 and not node.orelse:
                truth = _truth(node.test)
                return None if truth is None else not truth
            return None
    return None


def _truth(test: ast.expr) -> bool | None:
    """What each part of a condition is for it to hold; None where they are not asked as they stand."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = {_truth(one) for one in test.values}
        return parts.pop() if len(parts) == 1 else None
    return None if any(_turns(node) for node in ast.walk(test)) else True


def _turns(node: ast.AST) -> bool:
    """Whether it makes something else of a bool that is read within it."""
    if isinstance(node, ast.Compare):
        inside = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
        return bool(inside & {"item", "bool", "tolist"})
    return isinstance(node, (ast.Not, ast.IfExp))


@lru_cache(1024)
def _decides(file: str, line: int, innermost: bool) -> bool | None:
    """What is said of the line: True and False where a loop is around it, None where the caller knows."""
    tree = _tree(file)
    inner = _innermost(tree, line) if tree is not None else None
    if inner is None:
        return None
    if not isinstance(inner, ast.While):
        return False
    if _within(inner.test, line):
        return True
    names = _assigned(inner, line) if innermost else set()
    for node in ast.walk(inner):
        if isinstance(node, ast.If) and any(_leaves(one) for one in (*node.body, *node.orelse)):
            used = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
            if _within(node.test, line) or names & used:
                return True
    used = {one.id for one in ast.walk(inner.test) if isinstance(one, ast.Name)}
    return bool(names & used)


@lru_cache(64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _innermost(tree: ast.Module, line: int) -> ast.AST | None:
    """The innermost loop around the line, in the same function."""
    found: ast.AST | None = None
    node: ast.AST = tree
    while True:
        following = next((one for one in ast.iter_child_nodes(node) if _within(one, line)), None)
        if following is None:
            return found
        if isinstance(following, _SCOPES):
            found = None
        elif isinstance(following, (ast.For, ast.AsyncFor, ast.While)):
            found = following
        node = following


def _within(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    if first is None:
        return any(_within(one, line) for one in ast.iter_child_nodes(node))
    return first <= line <= (getattr(node, "end_lineno", None) or first)


def _assigned(loop: ast.While, line: int) -> set[str]:
    """The names that the statement at the line gives a value."""
    names: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _within(node, line):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(one.id for t in targets for one in ast.walk(t) if isinstance(one, ast.Name))
    return names


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Break, ast.Return, ast.Raise)) for one in ast.walk(node))
