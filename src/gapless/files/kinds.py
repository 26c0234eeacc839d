"""Recognize the kind of a file by its beginning; nothing else in Gapless does.

Kinds that Gapless reads have a name (``session``, ``trace``, ``snapshot``); a file of another program has a
title, and what to record instead.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gapless.errors import UnreadableInput
from gapless.files.foreign import ForeignFormat, identify_foreign
from gapless.files.input import open_rereadable, read_beginning
from gapless.files.sources import Source, is_url, open_source

HEAD = 1 << 20
"""Bytes at the beginning of a file, unpacked, by which it is recognized."""
_SAVED = re.compile(rb'\s*\{\s*(?:"checksum"\s*:\s*"\w*"\s*,\s*)?"format"\s*:\s*"gapless-([a-z]+)"')
_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_PICKLE = b"\x80"
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_EVENTS = re.compile(rb'"traceEvents"|"schemaVersion"|"ph"\s*:')
_SNAPSHOT = re.compile(rb'"device_traces"|"total_size"\s*:|MemoryViz')


@dataclass(frozen=True)
class FileKind:
    """The kind of a file.

    `name`: what Gapless saved (``session``, ``profile``, ``memory``, ``loader``, ``report``), ``trace``,
    ``snapshot``, or "" for everything else; then `foreign` says what it is, if known.
    """

    name: str
    foreign: ForeignFormat | None = None


def recognize(path: str) -> FileKind:
    """Return the kind of the file `path`.

    Raises:
        UnreadableInput: it cannot be read.
    """
    return kind_of_bytes(read_head(path), path)


def kind_of(path: str) -> str:
    """Return the name of the kind of the file `path`; "" if Gapless does not read it.

    Raises:
        UnreadableInput: it cannot be read.
    """
    return recognize(path).name


def kind_of_bytes(data: bytes, path: str) -> FileKind:
    """Return the kind of a file called `path` whose unpacked content begins with `data`."""
    text = data.lstrip(_BLANK)
    saved = _SAVED.match(text)
    if saved:
        return FileKind(saved.group(1).decode())
    other = identify_foreign(data, os.path.basename(path))
    if other is not None:
        return FileKind("", other)
    if data.startswith(_PICKLE):
        return FileKind("snapshot")
    if text[:1] in (b"{", b"[") and _EVENTS.search(data):
        return FileKind("trace")
    return FileKind("snapshot" if _SNAPSHOT.search(data) else "")


def read_head(path: str) -> bytes:
    """Return the unpacked beginning of `path`, without what is damaged.

    Raises:
        UnreadableInput: it cannot be opened.
    """
    if is_url(path):
        with open_source(path) as source:
            return source.read(HEAD)
    data = read_beginning(path, HEAD)
    if not data.startswith(_PACKED):
        return data
    with open_rereadable(path) as raw:
        try:
            return Source(raw, path).read(HEAD)
        except (UnreadableInput, EOFError, OSError):
            return data
