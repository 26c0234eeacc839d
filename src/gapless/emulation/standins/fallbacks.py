"""What libraries run without a package: read from the source of the modules that looked for it in vain."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gapless.emulation.standins import guards
from gapless.emulation.standins.asking import Refused
from gapless.model.fallback import Fallback

_HANDLED = guards.IMPORT | guards.ANY


def fallbacks(refused: Iterable[Refused]) -> tuple[Fallback, ...]:
    """The code that runs because of each of these answers, where there is any."""
    made = (_fallback(one) for one in refused)
    return tuple(dict.fromkeys(one for one in made if one is not None))


def _fallback(one: Refused) -> Fallback | None:
    tree = guards.parsed(one.file)
    if tree is None:
        return None
    functions: set[str] = set()
    flags: set[str] = set()
    lines: list[tuple[int, int]] = []
    for handler in _handlers(tree, one.line):
        lines.append(_range(handler.body))
        for node in ast.walk(handler):
            _bound(node, functions, flags)
    flags |= set(_answers(tree, one.line))
    lines += [span for node in ast.walk(tree) for span in _branches(node, flags)]
    if not functions and not lines:
        return None
    return Fallback(
        library=one.library,
        package=one.distribution,
        file=one.file,
        functions=tuple(sorted(functions)),
        lines=tuple(sorted(set(lines))),
    )


def _handlers(tree: ast.Module, line: int) -> Iterator[ast.ExceptHandler]:
    """The handlers of a failed import at `line`: of the innermost ``try`` around it."""
    tries = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and _contains(_range(node.body), line) and any(_fits(node))
    ]
    if tries:
        yield from _fits(max(tries, key=lambda node: node.lineno))


def _fits(node: ast.Try) -> Iterator[ast.ExceptHandler]:
    return (one for one in node.handlers if _HANDLED & set(guards.errors(one.type)))


def _bound(node: ast.AST, functions: set[str], flags: set[str]) -> None:
    """Add what a handler's statement binds: functions in place of the package's, or a name that says so."""
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


def _answers(tree: ast.Module, line: int) -> Iterator[str]:
    """Names of the module that hold or return the answer to a question at `line`."""
    for node in tree.body:
        if not _contains((node.lineno, node.end_lineno or node.lineno), line):
            continue
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def _branches(node: ast.AST, flags: set[str]) -> Iterator[tuple[int, int]]:
    """The lines that `node` runs where the names `flags` are false or None."""
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if not isinstance(body, list):
            continue
        for place, one in enumerate(body):
            if not isinstance(one, ast.If):
                continue
            says = _says(one.test, flags)
            if says is False:
                yield _range(one.body)
            elif says and one.orelse:
                yield _range(one.orelse)
            elif says and isinstance(one.body[-1], ast.Return) and body[place + 1 :]:
                yield _range(body[place + 1 :])


def _says(test: ast.expr, flags: set[str]) -> bool | None:
    """Whether `test` holds with the package (True), without it (False), or says nothing of it (None)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _says(test.operand, flags)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id in flags:
        return {ast.Is: False, ast.IsNot: True}.get(type(test.ops[0]))
    if isinstance(test, ast.Call):
        test = test.func
    return True if isinstance(test, ast.Name) and test.id in flags else None


def _range(body: list[ast.stmt]) -> tuple[int, int]:
    return body[0].lineno, body[-1].end_lineno or body[-1].lineno


def _contains(span: tuple[int, int], line: int) -> bool:
    return span[0] <= line <= span[1]
