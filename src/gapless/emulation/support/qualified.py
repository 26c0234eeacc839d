"""Find the qualified name of a function from its source: ``Net.forward`` for the function around a line."""

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
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HAS_QUALNAMES = hasattr(lru_cache.__code__, "co_qualname")
"""Whether this Python's code objects have qualified names; before 3.11 stacks have plain names."""


def qualified_name(file: str, name: str, line: int) -> str:
    """Return the qualified name of the function `name` around `line` of `file`, as its code object has it.

    Without ``<locals>``; just `name` if the source cannot be read.
    """
    tree = _parse_file(file) if _HAS_QUALNAMES and name != "<module>" else None
    longest = name
    nodes: list[tuple[ast.AST, str]] = [(tree, "")] if tree is not None else []
    while nodes:
        node, enclosing = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not _contains(child, line):
                continue
            own = child.name if isinstance(child, _DEFINITIONS) else _SCOPES.get(type(child), "")
            path = f"{enclosing}.{own}" if enclosing and own else own or enclosing
            if own == name and path.count(".") >= longest.count("."):
                longest = path
            nodes.append((child, path))
    return longest


def _contains(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is None or first <= line <= (getattr(node, "end_lineno", None) or first)


@lru_cache(maxsize=16)
def _parse_file(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
