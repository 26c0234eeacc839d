"""Whether code that imports something can do without it: a ``try`` around it handles an ImportError.

Read from the source at the current lines of the frames.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
ALL_ERRORS = frozenset({"Exception", "BaseException", ""})
"""Names of errors whose handlers handle any error; "" is a bare ``except``."""
_MODULE_BODIES = frozenset({"<module>"})


def handles_import_error(frame: FrameType | None) -> bool:
    """Whether `frame` or one of its callers handles an ImportError raised now.

    A handler of all errors counts only around the import itself and around imports of the modules that
    contain it: elsewhere it is meant for other errors.
    """
    importing = True
    while frame is not None:
        names = handled_errors(frame)
        if names & IMPORT_ERRORS or (importing and names & ALL_ERRORS):
            return True
        importing = importing and (frame.f_code.co_name in _MODULE_BODIES or _is_machinery(frame))
        frame = frame.f_back
    return False


def handled_errors(frame: FrameType) -> frozenset[str]:
    """Return the names of the errors handled around the current line of `frame`."""
    if _is_machinery(frame):
        return frozenset()
    return _handled_at(frame.f_code.co_filename, frame.f_lineno)


def _is_machinery(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen ")


@lru_cache(maxsize=4096)
def _handled_at(file: str, line: int) -> frozenset[str]:
    tree = parse_source(file)
    return frozenset(_errors_around(tree, line)) if tree is not None else frozenset()


@lru_cache(maxsize=512)
def parse_source(file: str) -> ast.Module | None:
    """Return the syntax tree of `file`; None if it has no Python source."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _errors_around(node: ast.AST, line: int) -> Iterator[str]:
    """Yield the names of errors handled around `line` within its innermost function or class."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Try) and _within(node.body, line):
            names += [name for handler in node.handlers for name in error_names(handler.type)]
        if isinstance(node, ast.With) and _within(node.body, line):
            names += [name for item in node.items for name in _suppressed_names(item.context_expr)]
        inner = next((child for child in ast.iter_child_nodes(node) if _contains(child, line)), None)
        if inner is None:
            yield from names
            return
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _within(
            inner.body, line
        ):
            names = []
        node = inner


def error_names(kind: ast.expr | None) -> Iterator[str]:
    """Yield the names of the errors that ``except kind:`` handles."""
    if kind is None:
        yield ""
    elif isinstance(kind, ast.Tuple):
        for kind_of_tuple in kind.elts:
            yield from error_names(kind_of_tuple)
    elif isinstance(kind, ast.Name):
        yield kind.id
    elif isinstance(kind, ast.Attribute):
        yield kind.attr


def _suppressed_names(context: ast.expr) -> Iterator[str]:
    if isinstance(context, ast.Call) and ast.unparse(context.func).endswith(("suppress", "raises")):
        for kind in context.args:
            yield from error_names(kind)


def _within(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _contains(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.ExceptHandler | ast.stmt | ast.expr | ast.match_case):
        begin = getattr(node, "lineno", None)
        if begin is None:  # a case has no lines of its own
            return any(_contains(child, line) for child in ast.iter_child_nodes(node))
        first = min([begin, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return bool(first <= line <= (node.end_lineno or begin))  # type: ignore[union-attr]
    return False
