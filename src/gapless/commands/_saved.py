"""Files on the user's side: what kind of file was named, and the source that a profile speaks of."""

from __future__ import annotations

import re
import tokenize
from typing import Literal

from gapless.errors import UnreadableInput

Kind = Literal["session", "profile", "trace", ""]

_FORMAT = re.compile(rb'"format"\s*:\s*"gapless-([a-z]+)"')
_HEAD = 65536
"""Bytes at the beginning of a file in which its format is looked for."""


def kind_of(path: str) -> Kind:
    """What the file at `path` is; "" for what is none of those that Gapless knows.

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
        kind = found.group(1).decode()
        return kind if kind in ("session", "profile") else ""  # type: ignore[return-value]  # one of the two
    return "trace" if b'"traceEvents"' in head or head.startswith(b"\x1f\x8b") else ""


def nearby(file: str) -> str:
    """The text of a source file of the user's, from the working directory; "" where it is not there."""
    try:
        with tokenize.open(file) as source:
            return source.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return ""
