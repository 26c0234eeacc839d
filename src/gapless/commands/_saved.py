"""Files on the user's side: what kind of file was named, and the source that a profile speaks of."""

from __future__ import annotations

import os
import re
import tokenize

from gapless.errors import UnreadableInput

_FORMAT = re.compile(rb'"format"\s*:\s*"gapless-([a-z]+)"')
_HEAD = 65536
"""Bytes at the beginning of a file in which its format is looked for."""


def kind_of(path: str) -> str:
    """``session``, ``profile``, ``report``, ``comparison``: what Gapless wrote; ``trace``; else "".

    Raises:
        UnreadableInput: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UnreadableInput(f"cannot read {path}: {error.strerror or error}") from None
    found = _FORMAT.search(head)
    if found:
        return found.group(1).decode()
    return "trace" if b'"traceEvents"' in head or head.startswith(b"\x1f\x8b") else ""


def nearby(file: str) -> str:
    """The text of a source file of the user's, from the working directory; "" where it is not there."""
    if not os.path.isfile(file):  # a pipe would never end
        return ""
    try:
        with tokenize.open(file) as source:
            return source.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ""
