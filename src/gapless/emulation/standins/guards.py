"""Whether code that imports something goes on without it: the ``try`` around it handles an ImportError.

Read from the source, at the lines that the frames are at.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

IMPORT = frozenset({"ImportError", "ModuleNotFoundError"})
ANY = frozenset({"Exception", "BaseException", ""})
"""Names of errors whose handlers handle a failed import; "" is a handler without a name."""
_BODIES = frozenset({"<module>"})


def guarded(frame: FrameType | None) -> bool:
    """Whether `frame` or one that led to it handles an ImportError that is raised now.

    A handler of all errors counts around the import itself, and around imports of the modules that it stands
    in: elsewhere it is there for other errors.
    """
    importing = True
    while frame is not None:
        caught = handled(frame)
        if caught & IMPORT or (importing and caught & ANY):
            return True
        importing = importing and (frame.f_code.co_name in _BODIES or _is_machinery(frame))
        frame = frame.f_back
    return False


def handled(frame: FrameType) -> frozenset[str]:
    """The names of the errors that are handled around the line that `frame` is at."""
    if _is_machinery(frame):
        return frozenset()
    return _handled(frame.f_code.co_filename, frame.f_lineno)


def _is_machinery(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen ")


@lru_cache(maxsize=4096)
def _handled(file: str, line: int) -> frozenset[str]:
    tree = parsed(file)
    return frozenset(_around(tree, line)) if tree is not None else frozenset()


@lru_cache(maxsize=512)
def parsed(file: str) -> ast.Module | None:
    """The source of `file`; None where there is none, or none of Python."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _around(node: ast.AST, line: int) -> Iterator[str]:
    """Errors handled around `line` within the innermost function or class that it belongs to."""
    found: list[str] = []
    while True:
        if isinstance(node, ast.Try) and _within(node.body, line):
            found += [name for handler in node.handlers for name in errors(handler.type)]
        if isinstance(node, ast.With) and _within(node.body, line):
            found += [name for item in node.items for name in _suppressed(item.context_expr)]
        inner = next((child for child in ast.iter_child_nodes(node) if _contains(child, line)), None)
        if inner is None:
            yield from found
            return
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _within(
            inner.body, line
        ):
            found = []
        node = inner


def errors(kind: ast.expr | None) -> Iterator[str]:
    """The names of what ``except kind:`` handles."""
    if kind is None:
        yield ""
    elif isinstance(kind, ast.Tuple):
        for one in kind.elts:
            yield from errors(one)
    elif isinstance(kind, ast.Name):
        yield kind.id
    elif isinstance(kind, ast.Attribute):
        yield kind.attr


def _suppressed(context: ast.expr) -> Iterator[str]:
    if isinstance(context, ast.Call) and ast.unparse(context.func).endswith(("suppress", "raises")):
        for kind in context.args:
            yield from errors(kind)


def _within(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _contains(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.ExceptHandler | ast.stmt | ast.expr | ast.match_case):
        begin = getattr(node, "lineno", None)
        if begin is None:  # a case has no lines of its own
            return any(_contains(child, line) for child in ast.iter_child_nodes(node))
        first = min([begin, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        return bool(first <= line <= (node.end_lineno or begin))  # type: ignore[union-attr]
    return False
