"""`SourceLine`: one place in somebody's code, and what a stack of them tells."""

from __future__ import annotations

import msgspec


class SourceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of source.

    `library` is the name of the installed package the file belongs to (``"torch"``,
    ``"torchmetrics"``), ``"python"`` for the standard library, and empty for the user's own code.
    `code` is the source text of the line, stripped; empty where the source cannot be read.
    """

    file: str
    line: int
    function: str = ""
    code: str = ""
    library: str = ""

    @property
    def is_user(self) -> bool:
        """Whether the line is the user's own and not a library's."""
        return not self.library

    @property
    def where(self) -> str:
        """``file:line``, as editors and terminals understand it."""
        return f"{self.file}:{self.line}"


Stack = tuple[SourceLine, ...]
"""Calls, innermost first."""


def user_line(stack: Stack) -> SourceLine | None:
    """The innermost line of the user's own code, or the innermost line of all, or None when empty."""
    for line in stack:
        if line.is_user:
            return line
    return stack[0] if stack else None


def library_frames(stack: Stack) -> Stack:
    """The library frames below the user's line, innermost first (empty when the user's line waits itself)."""
    frames: list[SourceLine] = []
    for line in stack:
        if line.is_user:
            return tuple(frames)
        frames.append(line)
    return tuple(frames)
