"""The bytes of a trace, cut between events, so that a file is never whole in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gapless.errors import UnreadableInput
from gapless.trace import repair
from gapless.trace.events import TraceEvent

CHUNK = 8 << 20
_WINDOW = 1 << 16
_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_MOST_HEAD = 64 << 20
"""A file whose events have not begun after this many bytes is not a trace."""

_decoder = msgspec.json.Decoder(list[TraceEvent])


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes: ...


@dataclass
class Rest:
    """What is not an event: the text before the events, the text after them, and what went wrong."""

    before: bytes = b""
    after: bytes = b""
    truncated: bool = False
    size: int = 0
    damage: repair.Damage = field(default_factory=repair.Damage)


def events(source: Source, rest: Rest, name: str, size: int = CHUNK) -> Iterator[list[TraceEvent]]:
    """The events of a file, some thousands at a time; `rest` is filled on the way.

    Raises:
        UnreadableInput: this is no trace; said before the first events are given.
    """
    buffer, begins = _begin(source, rest, name)
    rest.before = buffer[:begins]
    buffer = buffer[begins:]
    while True:
        more = source.read(size)
        rest.size += len(more)
        buffer += more
        last = not more
        if last:
            cut = len(buffer)
        else:
            cut = _cut(buffer)
            if cut < 0:
                continue  # one event longer than what was read
        found, end = _decode(buffer[:cut], last, rest)
        yield found
        if end >= 0:
            rest.after = buffer[end:] + _remainder(source, rest)
            return
        if last:
            return
        buffer = buffer[cut:]


def _begin(source: Source, rest: Rest, name: str) -> tuple[bytes, int]:
    """The first bytes and where in them the events begin."""
    buffer = b""
    while True:
        more = source.read(CHUNK)
        rest.size += len(more)
        buffer += more
        if not buffer.strip(b" \t\r\n\xef\xbb\xbf\0"):
            if not more:
                raise UnreadableInput(
                    f"{name} is empty: the profiler wrote nothing, or was killed before it could"
                )
            continue
        text = buffer.lstrip(b" \t\r\n\xef\xbb\xbf")
        if text[:1] == b"[":
            return buffer, len(buffer) - len(text) + 1
        if text[:1] != b"{":
            raise UnreadableInput(f"{name} is not JSON: it begins with {text[:20]!r}")
        found = _HEAD.search(buffer)
        if found:
            return buffer, found.end()
        if not more or len(buffer) > _MOST_HEAD:
            raise UnreadableInput(
                f'{name} is no PyTorch profiler trace: it has no "traceEvents" ({_what(buffer)})'
            )


def _what(data: bytes) -> str:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"and is not JSON: {error}"
    keys = ", ".join(repr(key) for key in list(found)[:4])
    return f"it is JSON with {keys}" if keys else "it is an empty object"


def _cut(buffer: bytes) -> int:
    """Where the last event begins, most likely: after the last ``},`` that a ``{`` follows; -1 if nowhere."""
    window = _WINDOW
    while True:
        start = max(0, len(buffer) - window)
        ends = [found.end() for found in _BETWEEN.finditer(buffer, start)]
        if ends:
            return ends[-1]
        if not start:
            return -1
        window *= 8


def _decode(data: bytes, last: bool, rest: Rest) -> tuple[list[TraceEvent], int]:
    """The events in `data`, and where what follows them begins (-1 while there may be more)."""
    body = data.rstrip()
    closed = not last and body.endswith(b",")
    text = b"[" + (body[:-1] if closed else body) + (b"" if last else b"]")
    try:
        return _decoder.decode(text), (len(data) if last else -1)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        trailing = _TRAILING.search(str(error))
        if trailing:
            # The list closed inside: what follows is the tail of the file.
            end = int(trailing.group(1)) - 1
            try:
                return _decoder.decode(text[:end]), end - 1
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
    found, end, truncated = repair.salvage(data, last, rest.damage)
    rest.truncated = rest.truncated or truncated
    return found, end


def _remainder(source: Source, rest: Rest) -> bytes:
    parts = []
    while more := source.read(CHUNK):
        rest.size += len(more)
        parts.append(more)
        if sum(map(len, parts)) > _MOST_HEAD:
            break
    return b"".join(parts)
