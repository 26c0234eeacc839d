"""The bytes of a trace, cut between events, so that a file is never whole in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gapless.errors import UnreadableInput
from gapless.files.foreign import foreign
from gapless.files.kinds import HEAD
from gapless.trace import refusal
from gapless.trace.events import Event
from gapless.trace.repair import BETWEEN, ERRORS, Damage, Format, closed, salvage

CHUNK = 1 << 20
_WINDOW = 1 << 16
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\]\s*,?\s*\[\s*(?=\{)")
_EVENT = re.compile(rb'\{(?=[^{}]{0,600}?"ph"\s*:\s*"[A-Za-z]")(?=[^{}]{0,600}?"pid"\s*:)')
"""Where an event begins, in bytes of which nothing is certain."""
_PHASE = re.compile(rb'"ph"\s*:')
_EXACT = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
_BRACKET, _COMMA = b"],"
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
        left, again = self.begin(), b""
        while True:
            # One bracket before and room for one after: the pieces are decoded where they lie.
            buffer = bytearray(b"[")
            buffer += left
            last = False
            if again or len(left) < self._size:  # what is to be read again needs more to be understood
                more = self._read()
                buffer += more
                last = not more
            cut = len(buffer) if last else self._enough(buffer)
            if cut < 0:
                last, cut = True, len(buffer)
            found, tail, again = self._decode(buffer, cut, last)
            left = bytes(memoryview(buffer)[cut:])
            del buffer
            yield found
            if tail is not None:
                following = self._following(tail + left)
                if following is None:
                    return
                left = following
            elif last:
                self._rest.truncated = True
                return
            else:
                left = again + left

    def _enough(self, buffer: bytearray) -> int:
        """Read on until an event ends in `buffer`, and where the last one does; -1 at the end of the file."""
        searched = 1
        while True:
            cut = _cut(buffer, searched)
            if cut >= 0:
                return cut
            if len(buffer) > _MOST_EVENT:
                return len(buffer)
            searched = max(1, len(buffer) - _WINDOW)
            more = self._read()
            if not more:
                return -1
            buffer += more

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
                other = foreign(buffer[:HEAD], os.path.basename(self._name))
                if other is not None:
                    raise UnreadableInput(other.refusal(self._name))
                self._rest.before = buffer[:found]
                self._form = Format(exact=_EXACT.search(buffer[: 1 << 20]) is not None)
                return buffer[found:]
            searched = max(0, len(buffer) - _WINDOW)
            if not more or len(buffer) > _MOST_HEAD or refusal.hopeless(buffer):
                event = _EVENT.search(buffer)
                if event and _timed(buffer[event.start() :]):
                    self._rest.damage.dropped["broken"] += 1
                    self._rest.damage.corrupted += event.start()
                    return buffer[event.start() :]
                raise UnreadableInput(refusal.reason(buffer, self._name, whole=not more))

    def _read(self) -> bytes:
        more = self._source.read(self._size)
        self._rest.size += len(more)
        return more

    def _decode(self, buffer: bytearray, cut: int, last: bool) -> tuple[list[Event], bytes | None, bytes]:
        """The events in `buffer` up to `cut`, what follows their list if it ends, and what to read again."""
        comma = -1 if last else buffer.rfind(b",", 0, cut)
        many = self._form.many
        with memoryview(buffer) as view:
            try:
                if bytes(view[comma + 1 : cut]).strip() and not last:
                    raise OverflowError  # no event has ended in all this
                if comma < 0:
                    return many.decode(view[:cut]), b"]", b""
                view[comma] = _BRACKET
                return many.decode(view[: comma + 1]), None, b""
            except ERRORS as error:
                end = closed(error)
            finally:
                if comma >= 0:
                    view[comma] = _COMMA
            if end >= 0:
                try:
                    # The list ends inside: what follows is the tail of the file.
                    return many.decode(view[:end]), b"]" + bytes(view[end:cut]), b""
                except ERRORS:
                    pass
            result = salvage(bytes(view[1:cut]), last, self._rest.damage, self._form)
        return result.events, result.tail, result.left

    def _following(self, tail: bytes) -> bytes | None:
        """What was read from the next event on, where events go on behind the end of their list.

        Another profile follows there, or bytes that are damaged look like the end.
        """
        searched = 0
        while True:
            found = _LIST.match(tail) or _HEAD.search(tail, searched)
            event = _EVENT.search(tail, searched)
            if event and not (found and found.start() < event.start()):
                # What looked like the end of the list is damage: events go on behind it.
                self._rest.damage.dropped["broken"] += 1
                self._rest.damage.corrupted += event.start()
                return tail[event.start() :]
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


def _timed(data: bytes) -> bool:
    """Whether `data`, which begins as an event does, is one: with a time and a kind, and not alone."""
    start = data[:_WINDOW]
    return all(start.count(key) > 1 for key in (b'"ph"', b'"ts"', b'"cat"'))


def _cut(buffer: bytearray, searched: int) -> int:
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
