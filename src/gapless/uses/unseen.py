"""Tell where a value may be used in ways that the text does not show: by name, from outside, by a clock."""

from __future__ import annotations

import ast

from gapless.uses.source_files import FUNCTIONS, SourceFile, called_name, root_name

_BY_NAME = (
    "locals", "globals", "vars", "dir", "eval", "exec", "evaluate", "query", "currentframe", "_getframe",
    "stack", "interact", "embed", "breakpoint", "set_trace",
)  # fmt: skip
"""Functions that read variables by names that the text need not hold."""
_CLOCKS = (
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "time", "time_ns",
    "default_timer", "timeit", "elapsed_time", "do_bench", "Timer", "now",
)  # fmt: skip
"""Functions that read a clock."""
_PROMPTS = ("ipykernel", "<ipython-input", "<stdin>", "<console>", "<python-input")
"""Parts of the names that the code of cells and prompts has instead of a file's."""
_HARMLESS = ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "device", "stream")
"""Contexts that neither measure nor catch anything."""
_CAUGHT_ELSEWHERE = ("KeyboardInterrupt", "StopIteration", "SystemExit", "GeneratorExit")
"""Exceptions that no read raises."""


def is_typed(file: SourceFile) -> bool:
    """Whether `file` is a cell or a prompt, which shows a value, and whose variables others read."""
    return any(part in file.path for part in _PROMPTS)


def reads_clock(file: SourceFile) -> bool:
    """Whether `file` reads a clock, so that a read may stand there to wait."""
    return any(name in file.calls for name in _CLOCKS)


def in_class(file: SourceFile, statement: ast.AST) -> bool:
    """Whether `statement` stands in the body of a class, where a name is an attribute."""
    return isinstance(file.around(statement, ast.ClassDef, *FUNCTIONS), ast.ClassDef)


def is_read_by_name(file: SourceFile, scope: ast.AST) -> bool:
    """Whether something in `scope` may read variables without naming them."""
    return any(
        any(each is scope for each in file.chain(call))
        for name in _BY_NAME
        for call in file.calls.get(name, ())
    ) or (scope is file.tree and "__getattr__" in file.functions)


def is_watched(file: SourceFile, node: ast.AST) -> bool:
    """Whether a handler or a context around `node` may be there for its wait or its error."""
    child: ast.AST = node
    for each in file.chain(node):
        if isinstance(each, FUNCTIONS):
            return False
        if isinstance(each, ast.Try) and child in each.body and any(map(_catches, each.handlers)):
            return True
        if isinstance(each, (ast.With, ast.AsyncWith)) and not all(map(_is_harmless, each.items)):
            return True
        child = each
    return False


def is_caught(file: SourceFile, node: ast.AST) -> bool:
    """Whether the function around `node` handles what is raised there."""
    child: ast.AST = node
    for each in file.chain(node):
        if isinstance(each, FUNCTIONS):
            return False
        if isinstance(each, ast.Try) and child in each.body and each.handlers:
            return True
        child = each
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    names = {each.id for each in ast.walk(handler.type or ast.Pass()) if isinstance(each, ast.Name)}
    return not names or not names <= set(_CAUGHT_ELSEWHERE)


def _is_harmless(item: ast.withitem) -> bool:
    context = item.context_expr
    return isinstance(context, ast.Call) and called_name(context) in _HARMLESS


def changes_in_place(scope: ast.AST, name: str) -> bool:
    """Whether something in `scope` changes the tensor `name` in place.

    >>> tree = ast.parse("total += loss\\nhistory.append(loss.item())")
    >>> changes_in_place(tree, "total"), changes_in_place(tree, "loss")
    (True, False)
    """
    for node in ast.walk(scope):
        if isinstance(node, ast.AugAssign) and root_name(node.target) == name:
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and root_name(node) == name:
            return True
        if isinstance(node, ast.keyword) and node.arg == "out" and root_name(node.value) == name:
            return True
        method = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if method is not None and _is_in_place(method.attr) and root_name(method.value) == name:
            return True
    return False


def _is_in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__") and method != "requires_grad_"
