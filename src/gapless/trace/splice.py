"""A trace written again with more events in it: its own bytes, copied in pieces, and others before them."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gapless.errors import UsageError
from gapless.files.output import writing
from gapless.files.sources import Source, is_url, open_source
from gapless.trace.chunks import CHUNK, Rest, events
from gapless.trace.head import head
from gapless.trace.repair import BETWEEN

_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_HELD = 1 << 20
"""So many bytes are gathered before the ends of events are looked for, where the file ends amid one."""
_LEVEL = 4
"""Of gzip: traces are large, and twice the time makes them a tenth smaller."""


class Target(Protocol):
    """What bytes are written to."""

    def write(self, data: bytes, /) -> int: ...


More = Callable[[int], Iterable[bytes]]
"""Events as JSON, given what to take from a time in nanoseconds to have one of the file's own clock."""


def splice(path: str, target: str, more: More) -> None:
    """Write the trace `path` to `target` (compressed where that ends in ``.gz``), with ``more(base)`` in it.

    Where the file ends amid an event, that event is left out, so that the copy is JSON.

    Raises:
        UsageError: both are the same file, or `path` can be read only once.
        UnreadableInput: `path` is no trace, or `target` cannot be written.
    """
    if path == "-":
        raise UsageError("standard input can be read only once: pass the trace as a file")
    if not is_url(path) and os.path.exists(target) and os.path.samefile(path, target):
        raise UsageError(f"{target} is the trace itself: write to another file")
    rest = _rest(path)
    with _writing(target) as out, open_source(path) as source:
        first = _skip(source, rest.before)
        out.write(rest.before.lstrip(_BLANK))
        for event in more(head(rest).base):
            out.write(event + b",\n")
        _copy(first, source, out, rest)


def _rest(path: str) -> Rest:
    """What the file says beside its events: the base of its clock stands behind them in most."""
    rest = Rest()
    with open_source(path) as source:
        for some in events(source, rest, path):
            some.clear()
    return rest


def _skip(source: Source, before: bytes) -> bytes:
    """Read as far as the first event; what was read from there on."""
    wanted = len(before.lstrip(_BLANK))
    found = b""
    while len(found) < wanted or not found:
        more = source.read(CHUNK)
        if not more:
            break
        found = found + more if found else more.lstrip(_BLANK)
    return found[wanted:]


def _copy(first: bytes, source: Source, out: Target, rest: Rest) -> None:
    if not rest.truncated:
        out.write(first)
        while more := source.read(CHUNK):
            out.write(more)
        return
    held, begun = first, False
    while True:
        more = source.read(CHUNK)
        held += more
        if more and len(held) < _HELD:
            continue
        end = _last_end(held)
        if end:
            out.write(held[:end])
            held, begun = held[end:], True
        if not more:
            break
    whole = held.rstrip(_BLANK + b",")
    if not begun:  # one event only, if that
        out.write(whole if whole.endswith(b"}") else b"{}")
    out.write(b"\n]}\n" if rest.before.lstrip(_BLANK)[:1] == b"{" else b"\n]\n")


def _last_end(data: bytes) -> int:
    """Where the last event ends that another follows; 0 where none does."""
    ends = [found.start() + 1 for found in BETWEEN.finditer(data)]
    return ends[-1] if ends else 0


@contextmanager
def _writing(target: str) -> Iterator[Target]:
    """What is written to `target`, compressed where its name says so."""
    with writing(target) as raw:
        if not target.endswith(".gz"):
            yield raw
            return
        with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as out:
            yield out
