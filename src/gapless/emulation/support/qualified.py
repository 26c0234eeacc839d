"""The qualified name of a function, from its source: ``Net.forward`` for the function that a line is in."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import lru_cache

_INLINED: dict[type[ast.AST], str] = {
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
}
_SCOPES: dict[type[ast.AST], str] = {
    ast.Lambda: "<lambda>",
    ast.GeneratorExp: "<genexpr>",
    **(_INLINED if sys.version_info < (3, 12) else {}),
}
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_KNOWN = hasattr(lru_cache.__code__, "co_qualname")
"""Whether this Python's code objects have one: before 3.11 stacks have plain names."""


def qualified(file: str, name: str, line: int) -> str:
    """The name of the function `name` that `line` of `file` is in, as its code object has it.

    Without ``<locals>``, and without what is around it where the source cannot be read.
    """
    tree = _tree(file) if _KNOWN and name != "<module>" else None
    found = name
    nodes: list[tuple[ast.AST, str]] = [(tree, "")] if tree is not None else []
    while nodes:
        node, around = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not _holds(child, line):
                continue
            own = child.name if isinstance(child, _NAMED) else _SCOPES.get(type(child), "")
            path = f"{around}.{own}" if around and own else own or around
            if own == name and path.count(".") >= found.count("."):
                found = path
            nodes.append((child, path))
    return found


def _holds(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is None or first <= line <= (getattr(node, "end_lineno", None) or first)


@lru_cache(maxsize=16)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
