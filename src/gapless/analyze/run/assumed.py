"""Find the values assumed by a dry run that decided a branch, a size or a loop's end."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gapless.analyze.run.loop import ReadSource, tree_of
from gapless.files.input import source_text
from gapless.model.assumption import Assumption
from gapless.model.source import Stack

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def decisions(assumptions: Sequence[Assumption], read: ReadSource = source_text) -> tuple[Assumption, ...]:
    """Return the assumptions that decided something, by line: endless loops, then sizes, then branches.

    Numbers that are only kept or printed decide nothing; for values copied to the CPU it is unknown.
    """
    deciding = [
        assumption for assumption in assumptions if not assumption.given and _decides(assumption, read)
    ]
    by_line: dict[tuple[str, str], Assumption] = {}
    for assumption in deciding:
        by_line.setdefault(
            (assumption.line.where if assumption.line is not None else "", assumption.kind), assumption
        )
    return tuple(
        sorted(
            by_line.values(),
            key=lambda assumption: (not assumption.broken, assumption.kind != "size", -assumption.times),
        )
    )


def _decides(assumption: Assumption, read: ReadSource) -> bool:
    """Whether the assumed value decided a branch, a size or a loop's end."""
    if assumption.broken or assumption.kind in ("size", "bool"):
        return True
    return assumption.kind != "values" and _is_used_to_decide(assumption.stack, read)


def _is_used_to_decide(stack: Stack, read: ReadSource) -> bool:
    """Whether a number read at `stack` is compared, used as an index, or bounds a loop."""
    for frame in stack:
        tree = tree_of(frame.file, read)
        decides = _line_decides(tree, frame.line) if tree is not None else None
        if decides is not None:
            return decides
        if frame.is_user and frame.function == "<module>":
            break
    return False


def _line_decides(tree: ast.Module, line: int) -> bool | None:
    """Whether `line` uses a value to decide something; None if it returns the value to its caller."""
    scope = _enclosing_scope(tree, line)
    if any(_contains_line(test, line) for test in _deciding_nodes(scope)):
        return True
    names: set[str] = set()
    returns = False
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and _contains_line(node, line):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)}
        returns = returns or (isinstance(node, ast.Return) and _contains_line(node, line))
    if any(names & _names(test) for test in _deciding_nodes(scope)):
        return True
    handed = any(isinstance(node, ast.Return) and names & _names(node) for node in ast.walk(scope))
    return None if returns or handed else False


def _enclosing_scope(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function around `line`, or the module."""
    scope: ast.AST = tree
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, _SCOPES) and _contains_line(node, line):
            scope = node
    return scope


def _deciding_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all expressions in a function that decide a branch or the size of something."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            yield node.test
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            yield from node.args


def _names(node: ast.AST) -> set[str]:
    """Return the variable names in `node`."""
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _contains_line(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)
