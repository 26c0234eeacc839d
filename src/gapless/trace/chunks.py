"""Read a trace in pieces that end between events, so that a file is never whole in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from gapless.errors import UnreadableInput
from gapless.files.foreign import identify_foreign
from gapless.files.kinds import HEAD
from gapless.trace import refusal
from gapless.trace.events import Event
from gapless.trace.repair import BETWEEN, ERRORS, Damage, EventDecoders, end_of_value, salvage

CHUNK = 1 << 20
"""Bytes read at once."""
_WINDOW = 1 << 16
"""Bytes searched again after each read, as a pattern may lie across two pieces."""
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\]\s*,?\s*\[\s*(?=\{)")
_EVENT = re.compile(rb'\{(?=[^{}]{0,600}?"ph"\s*:\s*"[A-Za-z]")(?=[^{}]{0,600}?"pid"\s*:)')
"""Start of an event, in bytes that may be damaged."""
_PHASE = re.compile(rb'"ph"\s*:')
_NESTED = re.compile(rb'(?:\s*[\[{](?:\s*"[^"\\]*"\s*:)?){200}')
"""What nests deeper than any event does."""
_EXACT = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')
_BRACKET, _COMMA = b"],"
_BLANK = b" \t\r\n\xef\xbb\xbf\0"
_MAX_HEAD_BYTES = 64 << 20
"""A file whose events have not begun after this many bytes is not a trace."""
_MAX_EVENT_BYTES = 32 << 20
"""Where no event has ended after this many bytes, the bytes read are given up."""


class ByteReader(Protocol):
    """Anything that bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


_FIRST_BYTES = 1 << 16
"""Bytes of the first event that are kept, to say why there is none."""


@dataclass
class Rest:
    """Everything but the events: the text before and after them, and the damage met.

    `lists` counts the lists of events: more than one where profiles were written one after the other.
    `first` is how the first of them begins.
    """

    before: bytes = b""
    after: bytes = b""
    truncated: bool = False
    size: int = 0
    lists: int = 1
    first: bytes = b""
    damage: Damage = field(default_factory=Damage)

    @property
    def nests_too_deep(self) -> bool:
        """Whether the first event nests deeper than any event does."""
        return _NESTED.search(self.first) is not None


def iter_events(source: ByteReader, rest: Rest, name: str, size: int = CHUNK) -> Iterator[list[Event]]:
    """Yield the events of a file, some thousands at a time; `rest` is filled meanwhile.

    Raises:
        UnreadableInput: this is no trace; raised before the first events are yielded.
    """
    return _Reader(source, rest, name, size).events()


def is_trace(source: ByteReader) -> bool:
    """Whether the bytes of `source` begin as a trace does."""
    try:
        _Reader(source, Rest(), "", CHUNK).begin()
    except UnreadableInput:
        return False
    return True


class _Reader:
    def __init__(self, source: ByteReader, rest: Rest, name: str, size: int) -> None:
        self._source = source
        self._rest = rest
        self._name = name
        self._size = size
        self._form = EventDecoders()

    def events(self) -> Iterator[list[Event]]:
        left, again = self.begin(), b""
        while True:
            # One bracket before and room for one after: the pieces are decoded where they lie.
            buffer = bytearray(b"[")
            buffer += left
            last = False
            if again or len(left) < self._size:  # bytes to decode again need more after them
                more = self._read()
                buffer += more
                last = not more
            cut = len(buffer) if last else self._read_to_boundary(buffer)
            if cut < 0:
                last, cut = True, len(buffer)
            batch, tail, again = self._decode(buffer, cut, last)
            left = bytes(memoryview(buffer)[cut:])
            del buffer
            yield batch
            if tail is not None:
                following = self._skip_to_next_event(tail + left)
                if following is None:
                    return
                left = following
            elif last:
                self._rest.truncated = True
                return
            else:
                left = again + left

    def _read_to_boundary(self, buffer: bytearray) -> int:
        """Read until an event ends in `buffer`; return where the last one ends, -1 at the end of the file."""
        searched = 1
        while True:
            cut = _last_boundary(buffer, searched)
            if cut >= 0:
                return cut
            if len(buffer) > _MAX_EVENT_BYTES:
                return len(buffer)
            searched = max(1, len(buffer) - _WINDOW)
            more = self._read()
            if not more:
                return -1
            buffer += more

    def begin(self) -> bytes:
        """Read up to the first event; return the bytes read from there on.

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
            start = _first_event_offset(buffer, searched)
            if start >= 0:
                other = identify_foreign(buffer[:HEAD], os.path.basename(self._name))
                if other is not None:
                    raise UnreadableInput(other.refusal(self._name))
                self._rest.before = buffer[:start]
                self._form = EventDecoders(exact=_EXACT.search(buffer[: 1 << 20]) is not None)
                self._rest.first = buffer[start : start + _FIRST_BYTES]
                return buffer[start:]
            searched = max(0, len(buffer) - _WINDOW)
            if not more or len(buffer) > _MAX_HEAD_BYTES or refusal.is_hopeless(buffer):
                event = _EVENT.search(buffer)
                if event and _looks_like_event(buffer[event.start() :]):
                    self._rest.damage.dropped["broken"] += 1
                    self._rest.damage.corrupted += event.start()
                    return buffer[event.start() :]
                raise UnreadableInput(refusal.explain_refusal(buffer, self._name, whole=not more))

    def _read(self) -> bytes:
        more = self._source.read(self._size)
        self._rest.size += len(more)
        return more

    def _decode(self, buffer: bytearray, cut: int, last: bool) -> tuple[list[Event], bytes | None, bytes]:
        """Return the events in `buffer` up to `cut`, the bytes after their list if it ends, and those to
        decode again."""
        comma = -1 if last else buffer.rfind(b",", 0, cut)
        many = self._form.decode_all
        with memoryview(buffer) as view:
            try:
                if bytes(view[comma + 1 : cut]).strip() and not last:
                    raise OverflowError  # no event has ended in all this
                if comma < 0:
                    return many.decode(view[:cut]), b"]", b""
                view[comma] = _BRACKET
                return many.decode(view[: comma + 1]), None, b""
            except ERRORS as error:
                end = end_of_value(error)
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

    def _skip_to_next_event(self, tail: bytes) -> bytes | None:
        """Return the bytes from the next event on, where events follow the end of their list.

        Another profile follows there, or damaged bytes looked like the end. None where no event follows.
        """
        searched = 0
        while True:
            list_head = _LIST.match(tail) or _HEAD.search(tail, searched)
            event = _EVENT.search(tail, searched)
            if event and not (list_head and list_head.start() < event.start()):
                # What looked like the end of the list is damage: events go on behind it.
                self._rest.damage.dropped["broken"] += 1
                self._rest.damage.corrupted += event.start()
                return tail[event.start() :]
            if list_head:
                self._rest.lists += 1
                return tail[list_head.end() :]
            searched = max(0, len(tail) - _WINDOW)
            more = self._read() if len(tail) < _MAX_HEAD_BYTES else b""
            if not more:
                if self._rest.lists == 1:
                    self._rest.after = tail
                return None
            tail += more


def _first_event_offset(buffer: bytes, searched: int) -> int:
    """Return where the first event begins; -1 where more bytes are needed to say so."""
    text = buffer.lstrip(_BLANK)
    if text[:1] == b"[":
        begins = len(buffer) - len(text) + 1
        return begins if _PHASE.search(text, 0, 1 << 20) else -1
    match = _HEAD.search(buffer, searched) if text[:1] == b"{" else None
    return match.end() if match else -1


def _looks_like_event(data: bytes) -> bool:
    """Whether `data` begins with an event that has a time and a category and is not the only one."""
    start = data[:_WINDOW]
    return all(start.count(key) > 1 for key in (b'"ph"', b'"ts"', b'"cat"'))


def _last_boundary(buffer: bytearray, searched: int) -> int:
    """Return where the last event probably begins: after the last ``},`` before a ``{``; -1 if nowhere."""
    window = _WINDOW
    while True:
        start = max(searched, len(buffer) - window)
        ends = [match.end() for match in BETWEEN.finditer(buffer, start)]
        if ends:
            return ends[-1]
        if start <= searched:
            return -1
        window *= 8
