"""The bytes of a trace, cut between events, so that a file is never whole in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gapless.errors import UnreadableInput
from gapless.trace import refusal
from gapless.trace.events import Event
from gapless.trace.repair import BETWEEN, ERRORS, Damage, Format, closed, salvage

CHUNK = 8 << 20
_WINDOW = 1 << 16
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\]\s*,?\s*\[\s*(?=\{)")
_PHASE = re.compile(rb'"ph"\s*:')
_EXACT = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_MOST_HEAD = 64 << 20
"""A file whose events have not begun after this many bytes is not a trace."""
_MOST_EVENT = 32 << 20
"""Where no event has ended after this many bytes, what was read is given up."""


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass
class Rest:
    """What is not an event: the text before the events, the text after them, and what went wrong.

    `lists` counts the lists of events: more than one where profiles were written one after the other.
    """

    before: bytes = b""
    after: bytes = b""
    truncated: bool = False
    size: int = 0
    lists: int = 1
    damage: Damage = field(default_factory=Damage)


def events(source: Source, rest: Rest, name: str, size: int = CHUNK) -> Iterator[list[Event]]:
    """The events of a file, some thousands at a time; `rest` is filled on the way.

    Raises:
        UnreadableInput: this is no trace; said before the first events are given.
    """
    return _Reader(source, rest, name, size).events()


def is_trace(source: Source) -> bool:
    """Whether what `source` gives begins as a trace does."""
    try:
        _Reader(source, Rest(), "", CHUNK).begin()
    except UnreadableInput:
        return False
    return True


class _Reader:
    def __init__(self, source: Source, rest: Rest, name: str, size: int) -> None:
        self._source = source
        self._rest = rest
        self._name = name
        self._size = size
        self._form = Format()

    def events(self) -> Iterator[list[Event]]:
        buffer = self.begin()
        while True:
            searched = 0
            while True:
                more = self._read()
                buffer += more
                cut = _cut(buffer, searched) if more else len(buffer)
                if cut >= 0:
                    break
                if len(buffer) > _MOST_EVENT:
                    cut = len(buffer)
                    break
                searched = max(0, len(buffer) - _WINDOW)
            found, tail, left = self._decode(buffer[:cut], not more)
            buffer = buffer[cut:]
            yield found
            if tail is not None:
                following = self._following(tail + buffer)
                if following is None:
                    return
                buffer = following
            elif not more:
                self._rest.truncated = True
                return
            else:
                buffer = left + buffer

    def begin(self) -> bytes:
        """Read up to the first event; what was read from there on.

        Raises:
            UnreadableInput: this is no trace.
        """
        buffer, searched = b"", 0
        while True:
            more = self._read()
            buffer += more
            if more and not buffer.strip(_BLANK):
                buffer = b""
                continue
            found = _opening(buffer, searched)
            if found >= 0:
                self._rest.before = buffer[:found]
                self._form = Format(exact=_EXACT.search(buffer[: 1 << 20]) is not None)
                return buffer[found:]
            searched = max(0, len(buffer) - _WINDOW)
            if not more or len(buffer) > _MOST_HEAD or refusal.hopeless(buffer):
                raise UnreadableInput(refusal.reason(buffer, self._name, whole=not more))

    def _read(self) -> bytes:
        more = self._source.read(self._size)
        self._rest.size += len(more)
        return more

    def _decode(self, data: bytes, last: bool) -> tuple[list[Event], bytes | None, bytes]:
        """The events in `data`, what follows their list where it ends here, and what to read again."""
        text = b"[" + (data if last else data.rstrip().removesuffix(b",") + b"]")
        many = self._form.many
        try:
            return many.decode(text), (b"]" if last else None), b""
        except ERRORS as error:
            end = closed(error)
        if end >= 0:
            try:
                # The list ends inside: what follows is the tail of the file.
                return many.decode(text[:end]), b"]" + data[end - 1 :], b""
            except ERRORS:
                pass
        result = salvage(data, last, self._rest.damage, self._form)
        return result.events, result.tail, result.left

    def _following(self, tail: bytes) -> bytes | None:
        """Where profiles follow one another in a file: what was read from the next one's first event on."""
        searched = 0
        while True:
            found = _LIST.match(tail) or _HEAD.search(tail, searched)
            if found:
                self._rest.lists += 1
                return tail[found.end() :]
            searched = max(0, len(tail) - _WINDOW)
            more = self._read() if len(tail) < _MOST_HEAD else b""
            if not more:
                if self._rest.lists == 1:
                    self._rest.after = tail
                return None
            tail += more


def _opening(buffer: bytes, searched: int) -> int:
    """Where the first event begins; -1 where this cannot be told yet."""
    text = buffer.lstrip(_BLANK)
    if text[:1] == b"[":
        begins = len(buffer) - len(text) + 1
        return begins if _PHASE.search(text, 0, 1 << 20) else -1
    found = _HEAD.search(buffer, searched) if text[:1] == b"{" else None
    return found.end() if found else -1


def _cut(buffer: bytes, searched: int) -> int:
    """Where the last event begins, most likely: after the last ``},`` that a ``{`` follows; -1 if nowhere."""
    window = _WINDOW
    while True:
        start = max(searched, len(buffer) - window)
        ends = [found.end() for found in BETWEEN.finditer(buffer, start)]
        if ends:
            return ends[-1]
        if start <= searched:
            return -1
        window *= 8
