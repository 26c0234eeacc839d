"""Lines in a user's own method that wait if they meet device tensors, found in its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

READS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "bincount"}
"""Methods and functions that wait for a device tensor, whatever is in it."""
ASKED = {"any", "all", "equal", "allclose", "isnan", "isinf"}
"""Functions of tensors whose answer a condition has to wait for."""


def where(function: Callable[..., Any]) -> str:
    """``file:line`` of a function, the file by its name alone; empty where there is no source."""
    try:
        return f"{Path(inspect.getsourcefile(function) or '').name}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return ""


def waiting_lines(function: Callable[..., Any]) -> list[str]:
    """``file:line code`` of each line of `function` that reads a value of a tensor, in order."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        name = Path(inspect.getsourcefile(function) or "").name
    except (OSError, TypeError, SyntaxError):
        return []
    numbers = sorted({getattr(node, "lineno", 1) for node in ast.walk(tree) if _waits(node)})
    return [f"{name}:{first + n - 1} {lines[n - 1].strip()}" for n in numbers]


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _called(node) in READS
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        return any(_called(call) in ASKED for call in _calls(node.test))
    return False


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            yield one


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
