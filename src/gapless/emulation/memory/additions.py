"""The lines of a program that add to what a name is of, read off its source."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import lru_cache

from gapless.model.source import SourceLine

ADDERS = frozenset(
    ("append", "appendleft", "extend", "extendleft", "add", "insert", "update", "setdefault", "put", "push")
)
"""Methods of containers that add to them."""
_WORD = re.compile(r"[^\W\d]\w*")
"""The identifier in a label, which a line that adds to it contains."""
_MOST_LINES = 3
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ADDS, _FOLLOWS, _CALLS, _ASSIGNS = range(4)
"""How a statement adds, the surest first: it adds to a container or sums up; gives a name a value that is
made of its own last one; calls a method, or hands it over; assigns it at all."""


def additions(path: Sequence[str], files: Iterable[str], near: Container[str] = ()) -> tuple[SourceLine, ...]:
    """The lines in `files` that add to what `path` leads to: a variable's name, then labels such as
    ``.bank`` or ``["loss"]``; the likeliest first.

    Another file may call something else by the same name: lines of the files that are `near` come first.
    Where nothing adds to the last part of the path, lines that add to what holds it count.
    """
    files = tuple(files)
    for length in range(len(path), 0, -1):
        name = path[length - 1]
        lines = [
            ((file not in near or how == _ASSIGNS, how, not inside), order, line)
            for order, file in enumerate(files)
            for how, inside, line in _in_file(file, name)
        ]
        if lines:
            best = min(rank for rank, _, _ in lines)
            alike = [(order, line) for rank, order, line in lines if rank == best]
            alike.sort(key=lambda line: (line[0], line[1].line))
            return tuple(dict.fromkeys(line for _, line in alike))[:_MOST_LINES]
    return ()


@lru_cache(maxsize=4096)
def _in_file(file: str, name: str) -> tuple[tuple[int, bool, SourceLine], ...]:
    """How each statement of `file` that adds to `name` does so, whether it is in a loop or a function.

    A file without the name is not parsed, and what was looked for once is not looked for again: many holders
    of a large program ask the same.
    """
    word = _WORD.search(name)
    if word is not None and not any(word.group() in line for line in linecache.getlines(file)):
        return ()
    tree = tree_of(file)
    if tree is None:
        return ()
    additions = []
    for statement, function, inside in _statements(tree):
        how = _adds(statement, name)
        if how is not None:
            text = linecache.getline(file, statement.lineno).strip()
            line = SourceLine(file=file, line=statement.lineno, function=function, code=text)
            additions.append((how, inside, line))
    return tuple(additions)


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """The source of `file`; None where it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _statements(tree: ast.AST) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Simple statements, each with the function that it is in and whether that, or a loop, is around it."""
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


def _adds(statement: ast.stmt, name: str) -> int | None:
    """How `statement` adds to what is called `name`; None where it does not."""
    found: list[int] = []
    if isinstance(statement, ast.AugAssign):
        if named(statement.target, name):
            found.append(_ADDS)
    elif isinstance(statement, ast.Assign):
        found += _assigns(statement, name)
    for call in ast.walk(statement):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute) and named(call.func.value, name):
                found.append(_ADDS if call.func.attr in ADDERS else _CALLS)
            elif any(_names(one, name) for one in (call.func, *call.args)):
                found.append(_CALLS)
    return min(found, default=None)


def _assigns(statement: ast.Assign, name: str) -> Iterator[int]:
    targets = [
        part
        for target in statement.targets
        for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,))
    ]
    for target in targets:
        if isinstance(target, ast.Subscript) and named(target.value, name):
            yield _ADDS
        elif _names(target, name):
            again = any(_names(part, name) for part in ast.walk(statement.value))
            constant = isinstance(statement.value, (ast.Constant, ast.List, ast.Dict, ast.Tuple))
            if again:
                yield _FOLLOWS
            elif not constant:
                yield _ASSIGNS


def named(node: ast.expr, name: str) -> bool:
    """Whether `node` is what is called `name`, or an entry of it."""
    while isinstance(node, ast.Subscript) and not _names(node, name):
        node = node.value
    return _names(node, name)


def _names(node: ast.AST, name: str) -> bool:
    """Whether `node` is what a label or a variable is called."""
    if isinstance(node, ast.Name):
        return node.id == name
    if isinstance(node, ast.Attribute):
        return f".{node.attr}" == name
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        return name == f'["{key}"]' if isinstance(key, str) else name == f"[{key!r}]"
    return False
