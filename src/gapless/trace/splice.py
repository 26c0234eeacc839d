"""Write a trace again with more events in it: its own bytes, copied in pieces, and new events before them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gapless.errors import UsageError
from gapless.files.output import writing
from gapless.files.sources import Source, is_url, open_source
from gapless.trace.chunks import CHUNK, Rest, iter_events
from gapless.trace.head import read_head
from gapless.trace.repair import BETWEEN

_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_BUFFER_BYTES = 1 << 20
"""Bytes collected before the ends of events are searched, where the file ends within an event."""
_GZIP_LEVEL = 4
"""Traces are large: a higher level takes twice the time and saves a tenth."""


class ByteWriter(Protocol):
    """Anything that bytes are written to."""

    def write(self, data: bytes, /) -> int: ...


MakeEvents = Callable[[int], Iterable[bytes]]
"""Makes events as JSON, from the nanoseconds to subtract from a time to get one on the file's clock."""


def splice(path: str, target: str, more: MakeEvents) -> None:
    """Write the trace `path` with the events ``more(base)`` to `target`, compressed if that ends in ``.gz``.

    Where the file ends within an event, that event is left out, so that the copy is valid JSON.

    Raises:
        UsageError: both are the same file, or `path` can be read only once.
        UnreadableInput: `path` is no trace, or `target` cannot be written.
    """
    if path == "-":
        raise UsageError("standard input can be read only once: pass the trace as a file")
    if not is_url(path) and os.path.exists(target) and os.path.samefile(path, target):
        raise UsageError(f"{target} is the trace itself: write to another file")
    rest = _read_rest(path)
    with _open_target(target) as out, open_source(path) as source:
        first = _skip_head(source, rest.before)
        out.write(rest.before.lstrip(_BLANK))
        for event in more(read_head(rest).base):
            out.write(event + b",\n")
        _copy_events(first, source, out, rest)


def _read_rest(path: str) -> Rest:
    """Read the head of the file: the base of its clock follows the events in most files."""
    rest = Rest()
    with open_source(path) as source:
        for batch in iter_events(source, rest, path):
            batch.clear()
    return rest


def _skip_head(source: Source, before: bytes) -> bytes:
    """Read as far as the first event; return the bytes read from there on."""
    wanted = len(before.lstrip(_BLANK))
    data = b""
    while len(data) < wanted or not data:
        more = source.read(CHUNK)
        if not more:
            break
        data = data + more if data else more.lstrip(_BLANK)
    return data[wanted:]


def _copy_events(first: bytes, source: Source, out: ByteWriter, rest: Rest) -> None:
    if not rest.truncated:
        out.write(first)
        while more := source.read(CHUNK):
            out.write(more)
        return
    held, begun = first, False
    while True:
        more = source.read(CHUNK)
        held += more
        if more and len(held) < _BUFFER_BYTES:
            continue
        end = _end_of_last_event(held)
        if end:
            out.write(held[:end])
            held, begun = held[end:], True
        if not more:
            break
    whole = held.rstrip(_BLANK + b",")
    if not begun:  # one event only, if that
        out.write(whole if whole.endswith(b"}") else b"{}")
    out.write(b"\n]}\n" if rest.before.lstrip(_BLANK)[:1] == b"{" else b"\n]\n")


def _end_of_last_event(data: bytes) -> int:
    """Return where the last event ends that another one follows; 0 if there is none."""
    ends = [match.start() + 1 for match in BETWEEN.finditer(data)]
    return ends[-1] if ends else 0


@contextmanager
def _open_target(target: str) -> Iterator[ByteWriter]:
    """Open `target` for writing, compressed where its name says so."""
    with writing(target) as raw:
        if not target.endswith(".gz"):
            yield raw
            return
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as out:
            yield out
