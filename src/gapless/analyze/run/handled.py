"""Find whether a script handles its own out-of-memory errors, as sweeps over sizes do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Literal

from gapless.analyze.run.loop import ReadSource, tree_of
from gapless.model import SourceLine
from gapless.model.memory import MemoryRun
from gapless.model.memory_answer import OutOfMemory

_ERROR = "OutOfMemoryError"
_GENERAL_ERRORS = ("RuntimeError", "Exception")
"""Types a handler may catch to then look at the message."""
_MESSAGE = "out of memory"
_After = Literal["fails", "leaves", "next"]
"""What follows a statement: the program fails, the handler is left, or the next statement follows."""


def handler_of(run: MemoryRun, lack: OutOfMemory, read: ReadSource) -> SourceLine | None:
    """Return the line that catches the error of the failing request and goes on with the next pass of a loop
    around it; None if none does."""
    if not 0 <= lack.event < len(run.place):
        return None
    caught: SourceLine | None = None
    for frame in run.stack(run.place[lack.event]):
        tree = tree_of(frame.file, read) if frame.is_user else None
        if tree is None:
            continue
        line = 0 if caught else next(_handlers(tree, frame.line), 0)
        caught = SourceLine(frame.file, line) if line else caught
        if caught and any(_holds(loop.body, line or frame.line) for loop in _loops(tree)):
            return caught
    return None


def _loops(tree: ast.Module) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.AsyncFor | ast.While))


def _holds(body: Sequence[ast.stmt], line: int) -> bool:
    """Whether `line` is in these statements."""
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _handlers(tree: ast.Module, line: int) -> Iterator[int]:
    """Yield the lines of the handlers around `line` after which a program that ran out of memory runs on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and _holds(node.body, line):
            yield from (
                handler.lineno
                for handler in node.handlers
                if _catches_out_of_memory(handler) and _outcomes(handler.body) != {"fails"}
            )


def _outcomes(statements: Sequence[ast.stmt]) -> set[_After]:
    """Return how these statements of a handler may end after a program ran out of memory."""
    outcomes: set[_After] = set()
    for statement in statements:
        after = _outcomes_of(statement)
        outcomes |= after - {"next"}
        if "next" not in after:
            return outcomes
    return outcomes | {"next"}


def _outcomes_of(statement: ast.stmt) -> set[_After]:
    """Return the same of one statement; of those with a condition on the message, what happens then."""
    match statement:
        case ast.Raise() | ast.Expr(value=ast.Call(func=ast.Name(id="exit" | "quit"))):
            return {"fails"}
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="exit" | "_exit"))):
            return {"fails"}
        case ast.Return() | ast.Continue() | ast.Break():
            return {"leaves"}
        case ast.With():
            return _outcomes(statement.body)
        case ast.If():
            met, unmet = _outcomes(statement.body), _outcomes(statement.orelse)
            if not _speaks_of_memory(statement.test):
                return met | unmet
            return unmet if _denies(statement.test) else met
    return {"next"}


def _denies(test: ast.expr) -> bool:
    """Whether the condition is that the message is another."""
    return any(isinstance(each, ast.Not | ast.NotIn | ast.NotEq) for each in ast.walk(test))


def _speaks_of_memory(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) and _MESSAGE in each.value.lower()
        for each in ast.walk(node)
    )


def _catches_out_of_memory(handler: ast.ExceptHandler) -> bool:
    """Whether `handler` is for running out of memory: by its type, or by the message it looks for."""
    named = {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(handler.type or ast.Name("Exception"))
        if isinstance(each, ast.Attribute | ast.Name)
    }
    if _ERROR in named:
        return True
    return bool(named & {*_GENERAL_ERRORS}) and any(map(_speaks_of_memory, handler.body))
