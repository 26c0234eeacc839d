"""Finds code that libraries run for lack of a package, in the source of the modules that asked for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gapless.emulation.standins import guards
from gapless.emulation.standins.package_requests import RefusedImport
from gapless.model.fallback import Fallback

_IMPORT_ERRORS = guards.IMPORT_ERRORS | guards.ALL_ERRORS


def find_fallbacks(refusals: Iterable[RefusedImport]) -> tuple[Fallback, ...]:
    """Return the fallback code that runs because of each refusal, if there is any."""
    candidates = (_fallback(refusal) for refusal in refusals)
    return tuple(dict.fromkeys(fallback for fallback in candidates if fallback is not None))


def _fallback(refusal: RefusedImport) -> Fallback | None:
    tree = guards.parse_source(refusal.file)
    if tree is None:
        return None
    functions: set[str] = set()
    flags: set[str] = set()
    lines: list[tuple[int, int]] = []
    for handler in _handlers(tree, refusal.line):
        lines.append(_line_range(handler.body))
        for node in ast.walk(handler):
            _add_bindings(node, functions, flags)
    flags |= set(_answer_names(tree, refusal.line))
    lines += [span for node in ast.walk(tree) for span in _fallback_ranges(node, flags)]
    if not functions and not lines:
        return None
    return Fallback(
        library=refusal.library,
        package=refusal.distribution,
        file=refusal.file,
        functions=tuple(sorted(functions)),
        lines=tuple(sorted(set(lines))),
    )


def _handlers(tree: ast.Module, line: int) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers of a failed import at `line`: those of the innermost ``try`` around it."""
    tries = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and _contains(_line_range(node.body), line)
        and any(_import_handlers(node))
    ]
    if tries:
        yield from _import_handlers(max(tries, key=lambda node: node.lineno))


def _import_handlers(node: ast.Try) -> Iterator[ast.ExceptHandler]:
    return (handler for handler in node.handlers if _IMPORT_ERRORS & set(guards.error_names(handler.type)))


def _add_bindings(node: ast.AST, functions: set[str], flags: set[str]) -> None:
    """Add what a handler's statement binds: replacement functions, or flags that say it is missing."""
    if isinstance(node, ast.ImportFrom):
        functions.update(name.name for name in node.names)
    elif isinstance(node, ast.FunctionDef):
        functions.add(node.name)
    elif isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if isinstance(node.value, ast.Constant) and not node.value.value:
            flags.update(names)
        elif isinstance(node.value, ast.Name):
            functions.add(node.value.id)


def _answer_names(tree: ast.Module, line: int) -> Iterator[str]:
    """Yield module-level names that hold or return whether the package asked for at `line` is installed."""
    for node in tree.body:
        if not _contains((node.lineno, node.end_lineno or node.lineno), line):
            continue
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def _fallback_ranges(node: ast.AST, flags: set[str]) -> Iterator[tuple[int, int]]:
    """Yield the line ranges of `node` that run only if the names `flags` are false or None."""
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if not isinstance(body, list):
            continue
        for place, statement in enumerate(body):
            if not isinstance(statement, ast.If):
                continue
            outcome = _test_outcome(statement.test, flags)
            if outcome is False:
                yield _line_range(statement.body)
            elif outcome and statement.orelse:
                yield _line_range(statement.orelse)
            elif outcome and isinstance(statement.body[-1], ast.Return) and body[place + 1 :]:
                yield _line_range(body[place + 1 :])


def _test_outcome(test: ast.expr, flags: set[str]) -> bool | None:
    """Whether `test` holds with the package (True) or without it (False); None if it depends on neither."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _test_outcome(test.operand, flags)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id in flags:
        return {ast.Is: False, ast.IsNot: True}.get(type(test.ops[0]))
    if isinstance(test, ast.Call):
        test = test.func
    return True if isinstance(test, ast.Name) and test.id in flags else None


def _line_range(body: list[ast.stmt]) -> tuple[int, int]:
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno


def _contains(span: tuple[int, int], line: int) -> bool:
    return span[0] <= line <= span[1]
