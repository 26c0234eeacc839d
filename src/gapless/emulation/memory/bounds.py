"""How many entries a program lets a container have, where its source compares the length with a number."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from gapless.emulation.memory.additions import ADDERS, named, tree_of

_REMOVERS = frozenset(("pop", "popleft", "popitem", "remove", "clear"))


def bound(name: str, files: Iterable[str], value_of: Callable[[ast.expr], object]) -> int:
    """The most entries that what is called `name` has by a condition in `files`; -1 where there is none.

    ``if len(name) > N: name.pop(0)`` is one, and ``if len(name) < N: name.append(x)``. `value_of` gives the
    value of an expression, None where it is not known.
    """
    for file in files:
        tree = tree_of(file)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.If, ast.While)):
                for limit, more in _limits(node, name):
                    value = value_of(limit)
                    if type(value) is int and value > 0:
                        return value + more
    return -1


def _limits(node: ast.If | ast.While, name: str) -> Iterator[tuple[ast.expr, int]]:
    """The number that a condition compares the length with, and how many more there may be."""
    test = node.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_length(test.left, name):
        return
    operator, limit = test.ops[0], test.comparators[0]
    calls = [part.func for one in node.body for part in ast.walk(one) if isinstance(part, ast.Call)]
    methods = {one.attr for one in calls if isinstance(one, ast.Attribute) and named(one.value, name)}
    deletes = any(
        isinstance(one, ast.Delete) and any(named(target, name) for target in one.targets)
        for part in node.body
        for one in ast.walk(part)
    )
    if isinstance(operator, (ast.Gt, ast.GtE)) and (methods & _REMOVERS or deletes):
        yield limit, 1
    if isinstance(operator, (ast.Lt, ast.LtE)) and methods & ADDERS:
        yield limit, 1


def _is_length(node: ast.expr, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "len"
        and len(node.args) == 1
        and named(node.args[0], name)
    )
