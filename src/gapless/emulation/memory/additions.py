"""Find the source lines that add to a variable or to a part of it."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from gapless.model.source import SourceLine

ADDERS = frozenset(
    ("append", "appendleft", "extend", "extendleft", "add", "insert", "update", "setdefault", "put", "push")
)
"""Methods of containers that add to them."""
_WORD = re.compile(r"[^\W\d]\w*")
"""The identifier in a label; a line that adds to it contains the identifier."""
_MAX_LINES = 3
"""Lines named at most: a report has room for few."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ADDS, _FOLLOWS, _CALLS, _ASSIGNS = range(4)
"""How a statement adds, most certain first: adds to a container or sums up; assigns a name a value computed
from its last one; calls a method, or passes it to a call; assigns it at all."""


def find_additions(
    path: Sequence[str], files: Iterable[str], near: Iterable[str] = ()
) -> tuple[SourceLine, ...]:
    """Return the lines in `files` that add to the object at `path`, the likeliest first.

    `path` is a variable's name, then labels such as ``.bank`` or ``["loss"]``. The same name may mean
    something else in another file: those that are not in `near` count only if `near` merely assigns it. If
    nothing adds to the last part of the path, lines that add to its holder count.
    """
    near = tuple(near)
    farther = tuple(file for file in files if file not in near)
    for length in range(len(path), 0, -1):
        name = path[length - 1]
        lines = _additions_in(near, name)
        if all(how == _ASSIGNS for (how, _), _, _ in lines):
            elsewhere = _additions_in(farther, name)
            lines = [line for line in elsewhere if line[0][0] != _ASSIGNS] or lines or elsewhere
        if lines:
            best = min(rank for rank, _, _ in lines)
            alike = [(order, line) for rank, order, line in lines if rank == best]
            alike.sort(key=lambda line: (line[0], line[1].line))
            return tuple(dict.fromkeys(line for _, line in alike))[:_MAX_LINES]
    return ()


def _additions_in(files: Sequence[str], name: str) -> list[tuple[tuple[int, bool], int, SourceLine]]:
    """Return each line of `files` that adds to `name`, with its rank and the position of its file."""
    return [
        ((how, not inside), order, line)
        for order, file in enumerate(files)
        for how, inside, line in _additions_in_file(file, name)
    ]


def mentions(file: str, name: str) -> bool:
    """Whether the source of `file` has the identifier in `name`: if not, it need not be parsed."""
    word = _WORD.search(name)
    return word is None or any(word.group() in line for line in linecache.getlines(file))


@lru_cache(maxsize=4096)
def _additions_in_file(file: str, name: str) -> tuple[tuple[int, bool, SourceLine], ...]:
    """Return how each statement of `file` adds to `name`, whether in a loop or function, and its line.

    Cached and skipped for files without the name: many holders of a large program look up the same names.
    """
    tree = tree_of(file) if mentions(file, name) else None
    if tree is None:
        return ()
    additions = []
    for statement, function, inside in _statements(tree):
        how = _kind_of_addition(statement, name)
        if how is not None:
            text = linecache.getline(file, statement.lineno).strip()
            line = SourceLine(file=file, line=statement.lineno, function=function, code=text)
            additions.append((how, inside, line))
    return tuple(additions)


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """Parse the source of `file`; None if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statements(tree: ast.AST) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Yield the simple statements, each with its function and whether it is inside a function or a loop."""
    pending: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
    while pending:
        node, function, inside = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _SCOPES):
                name = f"{function}.{child.name}" if function else child.name
                pending.append((child, name, inside or not isinstance(child, ast.ClassDef)))
            elif isinstance(child, ast.stmt):
                if not hasattr(child, "body"):
                    yield child, function or "<module>", inside
                pending.append((child, function, inside or isinstance(child, _LOOPS)))
            else:
                pending.append((child, function, inside))


def _kind_of_addition(statement: ast.stmt, name: str) -> int | None:
    """Return how `statement` adds to `name`; None if it does not."""
    kinds: list[int] = []
    if isinstance(statement, ast.AugAssign):
        if refers_to(statement.target, name):
            kinds.append(_ADDS)
    elif isinstance(statement, ast.Assign):
        kinds += _kinds_of_assignment(statement, name)
    for call in ast.walk(statement):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute) and refers_to(call.func.value, name):
                kinds.append(_ADDS if call.func.attr in ADDERS else _CALLS)
            elif any(_matches(part, name) for part in (call.func, *call.args)):
                kinds.append(_CALLS)
    return min(kinds, default=None)


def _kinds_of_assignment(statement: ast.Assign, name: str) -> Iterator[int]:
    """Yield how each target of an assignment adds to `name`."""
    targets = [
        part
        for target in statement.targets
        for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,))
    ]
    for target in targets:
        if isinstance(target, ast.Subscript) and refers_to(target.value, name):
            yield _ADDS
        elif _matches(target, name):
            again = any(_matches(part, name) for part in ast.walk(statement.value))
            constant = isinstance(statement.value, (ast.Constant, ast.List, ast.Dict, ast.Tuple))
            if again:
                yield _FOLLOWS
            elif not constant:
                yield _ASSIGNS


def refers_to(node: ast.expr, name: str) -> bool:
    """Whether `node` is the object called `name`, or an entry of it."""
    while isinstance(node, ast.Subscript) and not _matches(node, name):
        node = node.value
    return _matches(node, name)


def _matches(node: ast.AST, name: str) -> bool:
    """Whether `node` is the label or variable `name`."""
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Attribute):
        return f".{node.attr}" == name
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        return name == f'["{key}"]' if isinstance(key, str) else name == f"[{key!r}]"
    return False
