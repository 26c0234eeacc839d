"""Find whether a script handles its own out-of-memory errors, as sweeps over sizes do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gapless.analyze.run.loop import ReadSource, tree_of
from gapless.model import SourceLine
from gapless.model.memory import MemoryRun
from gapless.model.memory_answer import OutOfMemory

_ERROR = "OutOfMemoryError"
_GENERAL_ERRORS = ("RuntimeError", "Exception")
"""Types a handler may catch to then look at the message."""
_MESSAGE = "out of memory"


def handler_of(run: MemoryRun, lack: OutOfMemory, read: ReadSource) -> SourceLine | None:
    """Return the line that catches the error of the failing request; None if none does."""
    if not 0 <= lack.event < len(run.place):
        return None
    for frame in run.stack(run.place[lack.event]):
        tree = tree_of(frame.file, read) if frame.is_user else None
        line = next(_handlers(tree, frame.line), 0) if tree is not None else 0
        if line:
            return SourceLine(frame.file, line)
    return None


def _handlers(tree: ast.Module, line: int) -> Iterator[int]:
    """Yield the lines of out-of-memory handlers around `line`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try) or not node.body:
            continue
        if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0):
            yield from (handler.lineno for handler in node.handlers if _catches_out_of_memory(handler))


def _catches_out_of_memory(handler: ast.ExceptHandler) -> bool:
    """Whether `handler` is for running out of memory: by its type, or by the message it looks for."""
    named = {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(handler.type or ast.Name("Exception"))
        if isinstance(each, ast.Attribute | ast.Name)
    }
    if _ERROR in named:
        return True
    texts = (
        each.value.lower()
        for statement in handler.body
        for each in ast.walk(statement)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    return bool(named & {*_GENERAL_ERRORS}) and any(_MESSAGE in text for text in texts)
