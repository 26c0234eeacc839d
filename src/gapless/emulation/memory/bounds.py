"""Find the bound of a container's length in the program: a comparison of the length with a number."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from gapless.emulation.memory.additions import ADDERS, mentions, refers_to, tree_of

_REMOVERS = frozenset(("pop", "popleft", "popitem", "remove", "clear"))


def find_bound(name: str, files: Iterable[str], value_of: Callable[[ast.expr], object]) -> int:
    """Return the most entries that `name` can have by a condition in `files`; -1 if there is none.

    Conditions are ``if len(name) > N: name.pop(0)`` and ``if len(name) < N: name.append(x)``. `value_of`
    evaluates an expression, None if unknown.
    """
    for file in files:
        tree = tree_of(file) if mentions(file, name) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.If, ast.While)):
                for limit, more in _limits(node, name):
                    value = value_of(limit)
                    if type(value) is int and value > 0:
                        return value + more
    return -1


def _limits(node: ast.If | ast.While, name: str) -> Iterator[tuple[ast.expr, int]]:
    """Yield the expression that a condition compares the length with, and how many more entries are
    possible."""
    test = node.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not _is_length(test.left, name):
        return
    operator, limit = test.ops[0], test.comparators[0]
    nodes = [child for statement in node.body for child in ast.walk(statement)]
    functions = [child.func for child in nodes if isinstance(child, ast.Call)]
    methods = {f.attr for f in functions if isinstance(f, ast.Attribute) and refers_to(f.value, name)}
    deletes = any(
        isinstance(child, ast.Delete) and any(refers_to(target, name) for target in child.targets)
        for child in nodes
    )
    if isinstance(operator, (ast.Gt, ast.GtE)) and (methods & _REMOVERS or deletes):
        yield limit, 1
    if isinstance(operator, (ast.Lt, ast.LtE)) and methods & ADDERS:
        yield limit, 1


def _is_length(node: ast.expr, name: str) -> bool:
    """Whether `node` is ``len(name)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "len"
        and len(node.args) == 1
        and refers_to(node.args[0], name)
    )
