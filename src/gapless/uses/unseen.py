"""Tell where a value may be used in ways that the text does not show: by name, from outside, by a clock."""

from __future__ import annotations

import ast

from gapless.uses.source_files import FUNCTIONS, SourceFile, called_name, pair_targets, root_name

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
VIEWS = frozenset(
    {"detach", "view", "reshape", "squeeze", "unsqueeze", "flatten", "t", "transpose", "permute"}
)
"""Methods whose results share memory with their tensor."""
_VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
"""Attributes of which that holds."""
_MAX_DEPTH = 3
"""Functions within functions that are searched for changes of their arguments."""


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


def changes_in_place(file: SourceFile, scope: ast.AST, name: str, depth: int = 0) -> bool:
    """Whether something in `scope` changes the tensor `name` in place, also by another name or in a function
    of the same file.

    >>> text = "total += loss\\nhistory.append(loss.item())\\nrows = x.t()\\nfor row in rows: row.zero_()"
    >>> file = SourceFile("", ast.parse(text), text)
    >>> [changes_in_place(file, file.tree, name) for name in ("total", "loss", "x")]
    [True, False, True]
    """
    names = _shared_names(file, scope, name)
    return any(
        _changes(file, node, names) or _passes_on(file, node, names, depth) for node in ast.walk(scope)
    )


def _changes(file: SourceFile, node: ast.AST, names: set[str]) -> bool:
    """Whether `node` itself changes one of `names` in place."""
    if isinstance(node, ast.AugAssign):
        return root_name(node.target) in names
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and root_name(node) in names
    if isinstance(node, ast.keyword):
        return node.arg == "out" and root_name(node.value) in names
    if not isinstance(node, ast.Call):
        return False
    first = root_name(node.args[0]) if node.args else ""
    if any(option.arg == "inplace" and _is_true(option.value) for option in node.keywords) and first in names:
        return True
    owner = root_name(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    changed = first if not owner or owner in file.imports else owner
    return changed in names and _is_in_place(called_name(node))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _passes_on(file: SourceFile, node: ast.AST, names: set[str], depth: int) -> bool:
    """Whether `node` calls a function of `file` that changes an argument among `names` in place."""
    if not isinstance(node, ast.Call) or depth == _MAX_DEPTH:
        return False
    for function in file.functions.get(called_name(node), ()):
        bound = isinstance(node.func, ast.Attribute) and isinstance(file.parents.get(function), ast.ClassDef)
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][bound:]
        passed = [
            *zip(parameters, node.args, strict=False),
            *((option.arg, option.value) for option in node.keywords if option.arg),
        ]
        for parameter, argument in passed:
            if _shared_name(argument) in names and changes_in_place(file, function, parameter, depth + 1):
                return True
    return False


def _shared_names(file: SourceFile, scope: ast.AST, name: str) -> set[str]:
    """Return `name` with the other names of its function for the same tensor, its views and its elements."""
    around = scope if isinstance(scope, (*FUNCTIONS, ast.Module)) else file.scope(scope)
    pairs = [
        (target, value)
        for assigned in file.assigned.values()
        for target, value in assigned
        if file.scope(target) is around
    ]
    for loop in ast.walk(scope):
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs += pair_targets(loop.target, loop.iter)
    names, grown = {name}, 0
    while grown != len(names):
        grown = len(names)
        names |= {
            target.id
            for target, value in pairs
            if isinstance(target, ast.Name) and _shared_name(value) in names
        }
    return names


def _shared_name(node: ast.AST) -> str:
    """Return the variable whose memory `node` shares; "" if it is computed."""
    while True:
        if isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in _VIEW_ATTRIBUTES
        ):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            node = node.func.value
        else:
            return node.id if isinstance(node, ast.Name) else ""


def _is_in_place(method: str) -> bool:
    return method.endswith("_") and not method.endswith("__") and method != "requires_grad_"
