"""Whether a script only defines things: then it ran, and nothing happened."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

_NAMED_AT_MOST = 3
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


def only_defined(file: str) -> str:
    """What the script `file` defines and calls none of, in words; "" where it does anything else.

    >>> import linecache
    >>> text = "def train():\\n    pass\\n"
    >>> linecache.cache["/x/a.py"] = (len(text), None, text.splitlines(True), "/x/a.py")
    >>> only_defined("/x/a.py")
    'it only defines `train`, and calls nothing'
    """
    try:
        body = ast.parse("".join(linecache.getlines(file))).body
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if not all(map(_defines, body)):
        return ""
    names = [node.name for node in _flat(body) if isinstance(node, _DEFINITIONS)]
    if not names:
        return "it only sets names" if body else "it is empty"
    shown = ", ".join(f"`{name}`" for name in names[:_NAMED_AT_MOST])
    rest = len(names) - _NAMED_AT_MOST
    return f"it only defines {shown}{f' and {rest} more' if rest > 0 else ''}, and calls nothing"


def _defines(node: ast.stmt) -> bool:
    """Whether `node` does no more than to import, to define or to give a name."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # documentation
    if isinstance(node, ast.If):
        return "__main__" not in ast.unparse(node.test) and all(map(_defines, (*node.body, *node.orelse)))
    if isinstance(node, ast.Try):
        inner = (*node.body, *node.orelse, *node.finalbody, *(one for h in node.handlers for one in h.body))
        return all(map(_defines, inner))
    return isinstance(node, _ALLOWED)


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _flat((*node.body, *node.orelse))
