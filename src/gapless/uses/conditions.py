"""Classify what a condition is for: a check, a report, the end of a loop, the best so far, or a choice."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from gapless.model.use import UseKind
from gapless.uses import callees
from gapless.uses.source_files import FUNCTIONS, LOOPS, SourceFile, called_name, last_name
from gapless.uses.unseen import is_caught

_EXITS = ("exit", "_exit", "abort", "skip", "fail")
_SIGNALS = ("Stop", "Exit", "Interrupt", "Prune", "Skip", "Break", "Done", "Finish")
"""Words in the names of exceptions that say no error."""
_ASKS_FOR_NONE = {"0": (ast.Eq, ast.NotEq, ast.Gt, ast.LtE), "1": (ast.Lt, ast.GtE)}
"""Comparisons of a count that ask whether it is 0, by the number that it is compared with."""
Branching = ast.If | ast.While | ast.IfExp


def kind_of_condition(
    file: SourceFile, branching: Branching, counts: bool, values: Collection[str] = ()
) -> UseKind:
    """Return what the test of `branching` decides.

    `counts` says that it asks for the number of selected elements, `values` are the texts of what was read.
    """
    if isinstance(branching, ast.While):
        return "stop"
    if _keeps_best(branching, values):
        return "best"
    asks_for_none = counts and _asks_for_none(branching.test, values)
    if isinstance(branching, ast.IfExp):
        return "show" if _is_shown(file, branching) else "empty" if asks_for_none else "condition"
    body, other = branching.body, branching.orelse
    if _exits(body) and not other:
        return "stop"
    if isinstance(body[-1], ast.Raise) and not any(isinstance(each, LOOPS) for each in body) and not other:
        return "condition" if is_caught(file, branching) else "check"
    if _only_reports(body) and (not other or _only_reports(other)):
        return "show"
    if asks_for_none:
        return "empty"
    return "stop" if _ends_loop(file, branching) else "condition"


def _asks_for_none(test: ast.expr, counts: Collection[str]) -> bool:
    """Whether a test distinguishes only between no element and any, not between numbers of elements."""
    for each in ast.walk(test):
        if isinstance(each, ast.Compare) and ast.unparse(each.left) in counts:
            limit = ast.unparse(each.comparators[0])
            ops = _ASKS_FOR_NONE.get(limit, ())
            if len(each.ops) > 1 or not isinstance(each.ops[0], ops):
                return False
    return True


def _keeps_best(branching: Branching, values: Collection[str]) -> bool:
    """Whether the branch keeps one side of the comparison in the other."""
    sides = {
        ast.unparse(side)
        for each in ast.walk(branching.test)
        if isinstance(each, ast.Compare)
        for side in (each.left, *each.comparators)
        if not isinstance(side, ast.Constant)
    }
    if isinstance(branching, ast.IfExp):
        return len(sides) == 2 and {ast.unparse(branching.body), ast.unparse(branching.orelse)} == sides
    for each in branching.body:
        if not isinstance(each, ast.Assign) or len(branching.body) > 1 or branching.orelse:
            return False  # something else happens with the best: it is saved, or its step is kept
        # What is read and then assigned to is clamped: the best is kept in the other side.
        targets = {ast.unparse(target) for target in each.targets} & sides - set(values)
        if targets and ast.unparse(each.value) in sides - targets:
            return True
    return False


def _exits(body: Sequence[ast.stmt]) -> bool:
    """Whether the statements end the program, or a loop by an exception that says no error."""
    last = body[-1]
    if isinstance(last, ast.Raise):
        raised = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
        return raised is not None and any(word in last_name(raised) for word in _SIGNALS)
    return (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and called_name(last.value) in _EXITS
    )


def _only_reports(body: Sequence[ast.stmt]) -> bool:
    """Whether the statements only write text."""
    for statement in body:
        if isinstance(statement, ast.Pass):
            continue
        if (
            isinstance(statement, ast.If)
            and _only_reports(statement.body)
            and (not statement.orelse or _only_reports(statement.orelse))
        ):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and called_name(statement.value) in callees.SHOWS
        ):
            continue
        value = getattr(statement, "value", None)
        if isinstance(statement, (ast.Assign, ast.AugAssign)) and isinstance(value, ast.JoinedStr):
            continue
        if (
            isinstance(statement, (ast.Assign, ast.AugAssign))
            and isinstance(value, ast.Call)
            and called_name(value) == "format"
        ):
            continue
        return False
    return True


def _is_shown(file: SourceFile, node: ast.AST) -> bool:
    """Whether `node` is part of a text or of what is shown."""
    for each in file.chain(node):
        if isinstance(each, ast.stmt):
            return False
        if isinstance(each, ast.JoinedStr) or (
            isinstance(each, ast.Call) and called_name(each) in callees.SHOWS
        ):
            return True
    return False


def _ends_loop(file: SourceFile, branching: ast.If) -> bool:
    """Whether a branch leaves the loop around it."""
    loop = None
    for each in file.chain(branching):
        if isinstance(each, FUNCTIONS):
            break
        if isinstance(each, LOOPS):
            loop = each
            break
    if loop is None:
        return False
    ends = (ast.Break, ast.Return)
    return any(
        isinstance(inner, ends) for each in (*branching.body, *branching.orelse) for inner in ast.walk(each)
    )
