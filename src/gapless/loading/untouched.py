"""Which parts of its batches a loop never uses, by its source: names never read, keys never asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gapless.model.source import SourceLine

_EVERYTHING = frozenset(("locals", "vars", "eval", "exec", "globals", "dir"))
"""Calls by which a name can be read that stands nowhere."""
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def untouched(asked: SourceLine | None, columns: Sequence[str]) -> tuple[str, ...]:
    """Those of `columns` (names as ``[0]``, ``image`` or ``[1].mask``) that the loop at `asked` never uses.

    Nothing is said where the batch goes anywhere as a whole: to a function, into a list, through ``**``.
    """
    if asked is None:
        return ()
    try:
        with open(asked.file, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = _loop(tree, asked.line)
    if found is None:
        return ()
    scope, target = found
    if any(isinstance(node, ast.Name) and node.id in _EVERYTHING for node in ast.walk(scope)):
        return ()
    used = _used(scope, target)
    return tuple(name for name in columns if used is not None and not used.touches(name))


class _Uses:
    """Positions or keys of a batch, each with whether it is read; what is not among them is not known."""

    def __init__(self, read: dict[str, bool], others: bool) -> None:
        self._read, self._others = read, others

    def touches(self, column: str) -> bool:
        for name, read in self._read.items():
            if column == name or column.startswith((f"{name}.", f"{name}[")):
                return read
        return self._others


def _loop(tree: ast.Module, line: int) -> tuple[_Scope, ast.expr] | None:
    """What a batch that is asked for in `line` is called, and where that name is known."""
    for scope in _scopes(tree):
        for node in _within(scope):
            if isinstance(node, ast.For) and _at(node.iter, line):
                return _named(scope, node.target, node.iter)
            if isinstance(node, ast.Assign) and _at(node.value, line) and len(node.targets) == 1:
                call = node.value
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "next":
                    return scope, node.targets[0]
    return None


def _scopes(tree: ast.Module) -> Iterator[_Scope]:
    """Functions, then the module."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    yield tree


def _within(scope: _Scope) -> Iterator[ast.AST]:
    """Nodes of a scope, functions in it left out."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _at(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _named(scope: _Scope, target: ast.expr, over: ast.expr) -> tuple[_Scope, ast.expr] | None:
    """The target without the number that ``enumerate`` puts before it."""
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


def _used(scope: _Scope, target: ast.expr) -> _Uses | None:
    if isinstance(target, ast.Tuple | ast.List):
        return _unpacked(scope, target.elts)
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
                return _unpacked(scope, parts.elts)
        key = parent.slice if isinstance(parent, ast.Subscript) and parent.value is node else None
        if not isinstance(key, ast.Constant) or not isinstance(key.value, (str, int)):
            return None
        if isinstance(key.value, int) and key.value < 0:
            return None
        read[key.value if isinstance(key.value, str) else f"[{key.value}]"] = True
    return _Uses(read, others=False) if read else None


def _unpacked(scope: _Scope, names: Sequence[ast.expr]) -> _Uses | None:
    """Each position by whether its name is read anywhere in the scope; what is taken apart further is."""
    if any(isinstance(name, ast.Starred) for name in names):
        return None
    loaded = {
        node.id for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    read = {f"[{at}]": not isinstance(name, ast.Name) or name.id in loaded for at, name in enumerate(names)}
    return _Uses(read, others=True)
