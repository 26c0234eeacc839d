"""Events out of JSON that is none.

Profilers print ``NaN`` and ``N/A``, names with quotes and backslashes in them, bytes that are no UTF-8; other
programs print their log lines into the file; jobs are killed while they write. Only the events that are hit
are lost. Every function here looks at each byte a bounded number of times.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gapless.trace.events import Event, ExactEvent, TraceEvent, lenient
from gapless.trace.fields import by_fields

BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_TOP = "ph|cat|name|pid|tid|ts|dur|id|args|s|bp"
_OPENS = re.compile(rf'\{{\s*"(?:{_TOP})"\s*:')
_CLOSES = re.compile(r'\]\s*(?:,\s*"|\}|\]|\[|,\s*\[|$)')
_HEADS = (
    "traceName|displayTimeUnit|baseTimeNanoseconds|schemaVersion|deviceProperties|distributedInfo|with_stack"
)
_AFTER = re.compile(rf'\}}\s*(\]\s*(?:,\s*"(?:{_HEADS}|record_shapes|profile_memory)"\s*:.*|\}}?\s*))$')
_NOTHING = r"(?:[+-]?(?:NaN|nan|Infinity|inf)|N/A|n/a|None|undefined|-?1\.#[A-Z]+)(?=\s*[,}\]])"
_NO_VALUE = re.compile(rb'(?<=":)(\s*)' + _NOTHING.encode())
_NO_ITEM = re.compile(rf"(?<=[:,\[])\s*{_NOTHING}")
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}'
    rb"|u(?:[\dabcefABCEF][\da-fA-F]{3}|[dD][0-7][\da-fA-F]{2}))|\\"
)
_SPACES = bytes(32 if byte < 32 else byte for byte in range(256))
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
_JOINED = 8
"""How many stretches between ``},{`` may belong to one event, whose arguments may hold objects."""
_USUAL = 1 << 14
"""Characters that hold any but the longest events."""
_LONGEST = 1 << 20
"""An event that is longer is not looked for."""


class Format:
    """The decoders of a file: of the usual events or of the exact ones."""

    def __init__(self, exact: bool = False) -> None:
        kind: Any = ExactEvent if exact else TraceEvent
        self.exact = exact
        self.many: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[kind])
        self.many_loosely: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[kind], strict=False)
        self.one: msgspec.json.Decoder[Event] = msgspec.json.Decoder(kind)


@dataclass
class Damage:
    """What was found broken: how many values or events each repair saved, how many were lost to what.

    `corrupted` counts the bytes that were given up.
    """

    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    corrupted: int = 0


@dataclass
class Salvaged:
    """What came out of a stretch of a file.

    `tail` is what follows the list of events, from its closing bracket on; None while the list goes on.
    `left` may be the beginning of an event that goes on beyond the stretch.
    """

    events: list[Event]
    tail: bytes | None = None
    left: bytes = b""


def closed(error: Exception) -> int:
    """Where the bytes after a complete value begin, of the error that they caused; -1 for other errors."""
    found = _TRAILING.search(str(error))
    return int(found.group(1)) - 1 if found else -1


def salvage(data: bytes, last: bool, damage: Damage, form: Format) -> Salvaged:
    """The events in `data`, which begins with one and, unless it is the `last`, ends after a comma."""
    cleaned = _clean(data, damage)
    if not last:
        try:
            found = form.many_loosely.decode(b"[" + cleaned.rstrip(b" ,") + b"]")
        except ERRORS:
            pass
        else:
            return Salvaged(found)
    return _OneByOne(cleaned, last, damage, form).salvaged()


def _clean(data: bytes, damage: Damage) -> bytes:
    """`data` with what can be put right without knowing where events begin."""
    data, count = _NO_VALUE.subn(rb"\1-1", data)
    damage.repaired["values"] += count
    if b"\\" in data:
        data = _ESCAPE.sub(lambda found: found.group() if len(found.group()) > 1 else b"\\\\", data)
    damage.corrupted += data.rstrip(b"\0").count(b"\0")  # blocks that were never written
    # Within strings control characters are forbidden; outside them, all that are allowed are spaces.
    data = data.translate(_SPACES)
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode(errors="replace").encode()
    return data


def _length(text: str) -> int:
    """How much of `text` there is, without what was cleaned away before."""
    return sum(map(len, text.split()))


class _OneByOne:
    """Takes a stretch apart where one event seems to end and another to begin."""

    def __init__(self, data: bytes, last: bool, damage: Damage, form: Format) -> None:
        self._data = data
        self._last = last
        self._damage = damage
        self._form = form
        self._result = Salvaged([])

    def salvaged(self) -> Salvaged:
        ends = [found.start() + 1 for found in BETWEEN.finditer(self._data)]
        begins = [0, *(found.end() for found in BETWEEN.finditer(self._data))]
        stop = len(self._data.rstrip(b" ,"))
        if begins[-1] >= stop:
            begins.pop()
        else:
            ends.append(stop)
        at = 0
        while at < len(begins) and self._result.tail is None:
            taken = self._event(begins[at], ends[at : at + _JOINED])
            short = at + _JOINED > len(begins) and stop - begins[at] < _LONGEST
            if taken < 0 and short and not self._last:
                self._result.left = self._data[begins[at] :]
                break
            if taken <= 0:
                final = self._last and at == len(begins) - 1
                self._loosely(begins[at], ends[at], final)
            at += max(taken, 1)
        return self._result

    def _event(self, begin: int, ends: list[int]) -> int:
        """Decode the event at `begin`. How many stretches it took; 0: it is broken, -1: it goes on."""
        for count, end in enumerate(ends, 1):
            piece = self._data[begin:end]
            if len(piece) > _LONGEST:
                return 0
            try:
                self._result.events.append(self._form.one.decode(piece))
                return count
            except ERRORS as error:
                place = closed(error)
                if place >= 0:
                    return count if self._with_rest(begin, begin + place, end) else 0
                if "truncated" not in str(error):
                    return 0
        return -1

    def _with_rest(self, begin: int, middle: int, end: int) -> bool:
        """Decode an event that something follows: the end of the list, or text that does not belong there."""
        try:
            self._result.events.append(self._form.one.decode(self._data[begin:middle]))
        except ERRORS:
            return False
        self._loosely(middle, end, False)
        return True

    def _loosely(self, begin: int, end: int, final: bool) -> None:
        text = self._data[begin:end].decode(errors="replace")
        reader = _Loose(text, self._damage, self._form)
        self._result.events += reader.events(final)
        if reader.tail >= 0:
            place = begin + len(text[: reader.tail].encode())
            self._result.tail = self._data[place:]


class _Loose:
    """Reads events out of text of which nothing is certain."""

    def __init__(self, text: str, damage: Damage, form: Format) -> None:
        self._text = text
        self._damage = damage
        self._exact = form.exact
        self._typed = form.one
        options: dict[str, Any] = {"parse_float": str} if form.exact else {}
        self._json = json.JSONDecoder(strict=False, **options)
        self._work = 8 * len(text) + 4 * _USUAL
        self.tail = -1
        """Where the list of events ends, -1 while it does not."""

    def events(self, final: bool) -> Iterator[Event]:
        """What can be had. With `final`, what breaks off at the end of the text is the end of the file."""
        text, at = self._text, 0
        while at < len(text):
            opens = _OPENS.search(text, at)
            begin = opens.start() if opens else len(text)
            if self._ended(at, begin):
                return
            if begin == len(text):
                return
            following = _OPENS.search(text, begin + 1)
            found, end = self._object(begin)
            if found is not None:
                at = end
                if "ph" in found:
                    yield self._understood(found, text[begin:end])
                continue
            at = following.start() if following else len(text)
            yield from self._fields(begin, at, final and not following)

    def _ended(self, at: int, begin: int) -> bool:
        """Whether the list ends between the events; other text there is counted as foreign."""
        between = self._text[at:begin].strip(" ,")
        if not between:
            return False
        end = _CLOSES.search(self._text, at, begin)
        if end and (begin == len(self._text) or self._text[at : end.start()].strip(" ,") == ""):
            self.tail = end.start()
            return True
        self._damage.dropped["foreign"] += 1
        self._damage.corrupted += _length(between)
        return False

    def _understood(self, found: dict[str, Any], text: str) -> Event:
        try:
            return self._typed.decode(text.encode())
        except (*ERRORS, UnicodeEncodeError):
            self._damage.repaired["types"] += 1
            return lenient(found, self._exact)

    def _object(self, begin: int) -> tuple[dict[str, Any] | None, int]:
        """The JSON object at `begin` and where it ends, as long as there is work to be spent."""
        for stop in (begin + _USUAL, len(self._text)):
            if self._work <= 0:
                break
            try:
                found, end = self._json.raw_decode(self._text[begin:stop])
                return found, begin + end
            except json.JSONDecodeError as error:
                self._work -= stop - begin if error.msg.startswith("Unterminated") else error.pos
            except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
                self._work -= stop - begin
                break
            if stop >= len(self._text):
                break
        return None, begin

    def _fields(self, begin: int, end: int, final: bool) -> list[Event]:
        text = self._text[begin:end].rstrip(" ,")
        if _NO_ITEM.search(text):
            text = _NO_ITEM.sub("-1", text)
            try:
                found, stop = self._json.raw_decode(text)
            except (ValueError, RecursionError):
                pass
            else:
                if not text[stop:].strip(" ,"):
                    self._damage.repaired["values"] += 1
                    return [lenient(found, self._exact)]
        closes = _AFTER.search(text)
        if closes:
            self.tail = begin + closes.start(1)
            text = text[: closes.start(1)].rstrip(" ,")
        if not text.endswith("}"):
            self._damage.dropped["cut" if final else "broken"] += 1
            self._damage.corrupted += 0 if final else _length(text)
            return []
        event = by_fields(text, self._exact)
        if event is None:
            self._damage.dropped["broken"] += 1
            self._damage.corrupted += _length(text)
            return []
        self._damage.repaired["fields"] += 1
        return [event]
