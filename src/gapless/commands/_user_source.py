"""Read the source files that a profile names, on the user's machine."""

from __future__ import annotations

from gapless.files.input import source_text


def read_user_source(file: str) -> str:
    """Return the text of a user's source file, relative to the working directory; "" if it is missing."""
    try:
        return source_text(file)
    except (OSError, SyntaxError, ValueError):
        return ""
