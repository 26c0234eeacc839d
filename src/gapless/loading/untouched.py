"""Find parts of its batches that a loop never uses, from its source: names never read, keys never
requested.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gapless.model.source import SourceLine

_DYNAMIC_CALLS = frozenset(("locals", "vars", "eval", "exec", "globals", "dir"))
"""Calls that can read a variable without naming it."""
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def find_unused_columns(request_line: SourceLine | None, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the `columns` (names like ``[0]``, ``image`` or ``[1].mask``) that the loop at a line never
    uses.

    Empty if the whole batch is passed on: to a function, into a list, through ``**``.
    """
    if request_line is None:
        return ()
    try:
        with open(request_line.file, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()
    loop = _find_loop(tree, request_line.line)
    if loop is None:
        return ()
    scope, target = loop
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC_CALLS for node in ast.walk(scope)):
        return ()
    used = _find_reads(scope, target)
    return tuple(name for name in columns if used is not None and not used.touches(name))


class _ColumnReads:
    """Indices or keys of a batch with whether they are read; `unlisted` is the answer for all others."""

    def __init__(self, read: dict[str, bool], unlisted: bool) -> None:
        self._read, self._unlisted = read, unlisted

    def touches(self, column: str) -> bool:
        for name, read in self._read.items():
            if column == name or column.startswith((f"{name}.", f"{name}[")):
                return read
        return self._unlisted


def _find_loop(tree: ast.Module, line: int) -> tuple[_Scope, ast.expr] | None:
    """Return the scope and the variable of a batch requested in `line`."""
    for scope in _scopes(tree):
        for node in _own_nodes(scope):
            if isinstance(node, ast.For) and _spans(node.iter, line):
                return _batch_target(scope, node.target, node.iter)
            if isinstance(node, ast.Assign) and _spans(node.value, line) and len(node.targets) == 1:
                call = node.value
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "next":
                    return scope, node.targets[0]
    return None


def _scopes(tree: ast.Module) -> Iterator[_Scope]:
    """Yield functions, then the module."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    yield tree


def _own_nodes(scope: _Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of functions in it."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _batch_target(scope: _Scope, target: ast.expr, over: ast.expr) -> tuple[_Scope, ast.expr] | None:
    """Return the target without the number that ``enumerate`` adds; None for ``zip``."""
    calls = {
        node.func.id
        for node in ast.walk(over)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    if "zip" in calls:
        return None
    if "enumerate" not in calls:
        return scope, target
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        return scope, target.elts[1]
    return None


def _find_reads(scope: _Scope, target: ast.expr) -> _ColumnReads | None:
    if isinstance(target, ast.Tuple | ast.List):
        return _reads_of_targets(scope, target.elts)
    if not isinstance(target, ast.Name):
        return None
    read: dict[str, bool] = {}
    parents = {child: node for node in ast.walk(scope) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(scope):
        if not isinstance(node, ast.Name) or node.id != target.id or not isinstance(node.ctx, ast.Load):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
            parts = parent.targets[0]
            if isinstance(parts, ast.Tuple | ast.List):
                return _reads_of_targets(scope, parts.elts)
        key = parent.slice if isinstance(parent, ast.Subscript) and parent.value is node else None
        if not isinstance(key, ast.Constant) or not isinstance(key.value, (str, int)):
            return None
        if isinstance(key.value, int) and key.value < 0:
            return None
        read[key.value if isinstance(key.value, str) else f"[{key.value}]"] = True
    return _ColumnReads(read, unlisted=False) if read else None


def _reads_of_targets(scope: _Scope, names: Sequence[ast.expr]) -> _ColumnReads | None:
    """Return for each index whether its name is read anywhere in the scope; nested targets count as read."""
    if any(isinstance(name, ast.Starred) for name in names):
        return None
    loaded = {
        node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    read = {f"[{at}]": not isinstance(name, ast.Name) or name.id in loaded for at, name in enumerate(names)}
    return _ColumnReads(read, unlisted=True)
