"""Detect scripts that only define things, so that running them does nothing."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

_MAX_NAMES = 3
"""Names that the message lists; of more only the number is given."""
_ALLOWED = (
    ast.Import
    | ast.ImportFrom
    | ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.Assign
    | ast.AnnAssign
    | ast.Pass
)
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def describe_definitions_only(file: str) -> str:
    """Return a phrase for what the script `file` defines without calling it; "" if it does anything else.

    >>> import linecache
    >>> text = "def train():\\n    pass\\n"
    >>> linecache.cache["/x/a.py"] = (len(text), None, text.splitlines(True), "/x/a.py")
    >>> describe_definitions_only("/x/a.py")
    'it only defines `train`, and calls nothing'
    """
    try:
        body = ast.parse("".join(linecache.getlines(file))).body
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if not all(map(_only_defines, body)):
        return ""
    names = [node.name for node in _flatten(body) if isinstance(node, _DEFINITIONS)]
    if not names:
        return "it only sets names" if body else "it is empty"
    shown = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES])
    rest = len(names) - _MAX_NAMES
    return f"it only defines {shown}{f' and {rest} more' if rest > 0 else ''}, and calls nothing"


def _only_defines(node: ast.stmt) -> bool:
    """Whether `node` only imports, defines or assigns."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # documentation
    if isinstance(node, ast.If):
        return "__main__" not in ast.unparse(node.test) and all(
            map(_only_defines, (*node.body, *node.orelse))
        )
    if isinstance(node, ast.Try):
        inner = (
            *node.body,
            *node.orelse,
            *node.finalbody,
            *(statement for h in node.handlers for statement in h.body),
        )
        return all(map(_only_defines, inner))
    return isinstance(node, _ALLOWED)


def _flatten(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _flatten((*node.body, *node.orelse))
