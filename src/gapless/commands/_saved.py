"""The source that a profile speaks of, on the user's side."""

from __future__ import annotations

from gapless.files.input import source_text


def nearby(file: str) -> str:
    """The text of a source file of the user's, from the working directory; "" where it is not there."""
    try:
        return source_text(file)
    except (OSError, SyntaxError, ValueError):
        return ""
