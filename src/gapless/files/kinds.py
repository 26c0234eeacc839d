"""What kind of file something is: the one place that looks at how a file begins.

What Gapless reads has a name (``session``, ``trace``, ``snapshot``); a file of another program has a title,
and what to record instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gapless.errors import UnreadableInput
from gapless.files.foreign import Foreign, foreign
from gapless.files.input import beginning, open_again
from gapless.files.sources import Source, is_url, open_source

HEAD = 1 << 20
"""Bytes at the beginning of a file, unpacked, by which it is recognized."""
_SAVED = re.compile(rb'\s*\{\s*"format"\s*:\s*"gapless-([a-z]+)"')
_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_PICKLE = b"\x80"
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_EVENTS = re.compile(rb'"traceEvents"|"schemaVersion"|"ph"\s*:')
_SNAPSHOT = re.compile(rb'"device_traces"|"total_size"\s*:|MemoryViz')


@dataclass(frozen=True)
class Kind:
    """What a file is.

    `name`: what Gapless saved (``session``, ``profile``, ``memory``, ``loader``, ``report``), ``trace``,
    ``snapshot``, or "" for everything else; then `foreign` says what it is, if that is known.
    """

    name: str
    foreign: Foreign | None = None


def kind(path: str) -> Kind:
    """What kind of file `path` is.

    Raises:
        UnreadableInput: it cannot be read.
    """
    return kind_of_bytes(head(path), path)


def kind_of(path: str) -> str:
    """The name of the kind of file that `path` is; "" where Gapless does not read it.

    Raises:
        UnreadableInput: it cannot be read.
    """
    return kind(path).name


def kind_of_bytes(data: bytes, path: str) -> Kind:
    """What kind of file begins with `data`, unpacked, and is called `path`."""
    text = data.lstrip(_BLANK)
    saved = _SAVED.match(text)
    if saved:
        return Kind(saved.group(1).decode())
    other = foreign(data, os.path.basename(path))
    if other is not None:
        return Kind("", other)
    if data.startswith(_PICKLE):
        return Kind("snapshot")
    if text[:1] in (b"{", b"[") and _EVENTS.search(data):
        return Kind("trace")
    return Kind("snapshot" if _SNAPSHOT.search(data) else "")


def head(path: str) -> bytes:
    """How `path` begins, unpacked; what is damaged inside is left out.

    Raises:
        UnreadableInput: it cannot be opened.
    """
    if is_url(path):
        with open_source(path) as source:
            return source.read(HEAD)
    data = beginning(path, HEAD)
    if not data.startswith(_PACKED):
        return data
    with open_again(path) as raw:
        try:
            return Source(raw, path).read(HEAD)
        except (UnreadableInput, EOFError, OSError):
            return data
