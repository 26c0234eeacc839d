"""Find lines in a user's own method that wait for device tensors, from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

READING_CALLS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "bincount"}
"""Methods and functions that wait for a device tensor, whatever its values."""
CONDITION_CALLS = {"any", "all", "equal", "allclose", "isnan", "isinf"}
"""Functions of tensors whose result a condition has to wait for."""


def source_location(function: Callable[..., Any]) -> str:
    """Return the ``file:line`` of a function, without the folder; empty if there is no source."""
    try:
        return f"{Path(inspect.getsourcefile(function) or '').name}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return ""


def find_waiting_lines(function: Callable[..., Any]) -> list[str]:
    """Return ``file:line code`` of each line of `function` that reads a tensor's value, in order."""
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
        return _called_name(node) in READING_CALLS
    if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
        return any(_called_name(call) in CONDITION_CALLS for call in _find_calls(node.test))
    return False


def _find_calls(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            yield child


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
