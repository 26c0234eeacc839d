"""Read events from text that is not valid JSON.

Profilers print ``NaN`` and ``N/A``, names with quotes and backslashes in them, bytes that are not UTF-8;
other programs print their log lines into the file; jobs are killed while they write. Only the events that are
hit are lost. Every function here reads each byte a bounded number of times.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gapless.trace.events import Args, Event, ExactEvent, TraceEvent, convert_event

BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
"""Boundary between two events."""
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
_MAX_PIECES_PER_EVENT = 8
"""Pieces between ``},{`` that may belong to one event, as its arguments may hold objects."""
_USUAL_EVENT_CHARS = 1 << 14
"""Characters that hold all but the longest events."""
_MAX_EVENT_CHARS = 1 << 20
"""Longer events are given up."""


class EventDecoders:
    """The JSON decoders for the events of a file; with `exact` for times that need decimals."""

    def __init__(self, exact: bool = False) -> None:
        kind: Any = ExactEvent if exact else TraceEvent
        self.exact = exact
        self.decode_all: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[kind])
        self.decode_loosely: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(
            list[kind], strict=False
        )
        self.decode_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(kind)


@dataclass
class Damage:
    """Count of values and events that each repair saved, and of events lost, by reason.

    `corrupted` counts the bytes that were given up.
    """

    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    corrupted: int = 0


@dataclass
class Salvaged:
    """Events read from a piece of a damaged file.

    `tail` is the text after the list of events, from its closing bracket on; None while the list goes on.
    `left` may be the beginning of an event that continues beyond the piece.
    """

    events: list[Event]
    tail: bytes | None = None
    left: bytes = b""


def end_of_value(error: Exception) -> int:
    """Return where a complete value ends, by the error about what follows it; -1 for other errors."""
    match = _TRAILING.search(str(error))
    return int(match.group(1)) - 1 if match else -1


def salvage(data: bytes, last: bool, damage: Damage, form: EventDecoders) -> Salvaged:
    """Read the events in `data`, which begins with an event and, unless it is the `last`, ends after a
    comma."""
    cleaned = _clean(data, damage)
    if not last:
        try:
            events = form.decode_loosely.decode(b"[" + cleaned.rstrip(b" ,") + b"]")
        except ERRORS:
            pass
        else:
            return Salvaged(events)
    return _EventSplitter(cleaned, last, damage, form).split()


def _clean(data: bytes, damage: Damage) -> bytes:
    """Return `data` with everything repaired that needs no knowledge of where events begin."""
    data, count = _NO_VALUE.subn(rb"\1-1", data)
    damage.repaired["values"] += count
    if b"\\" in data:
        data = _ESCAPE.sub(lambda match: match.group() if len(match.group()) > 1 else b"\\\\", data)
    damage.corrupted += data.rstrip(b"\0").count(b"\0")  # blocks that were never written
    # Within strings control characters are forbidden; outside them, all that are allowed are spaces.
    data = data.translate(_SPACES)
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode(errors="replace").encode()
    return data


def _visible_length(text: str) -> int:
    """Return the number of characters of `text` that are not white space."""
    return sum(map(len, text.split()))


class _EventSplitter:
    """Splits a piece of a file where one event seems to end and another to begin."""

    def __init__(self, data: bytes, last: bool, damage: Damage, form: EventDecoders) -> None:
        self._data = data
        self._last = last
        self._damage = damage
        self._form = form
        self._result = Salvaged([])

    def split(self) -> Salvaged:
        ends = [match.start() + 1 for match in BETWEEN.finditer(self._data)]
        begins = [0, *(match.end() for match in BETWEEN.finditer(self._data))]
        stop = len(self._data.rstrip(b" ,"))
        if begins[-1] >= stop:
            begins.pop()
        else:
            ends.append(stop)
        at = 0
        while at < len(begins) and self._result.tail is None:
            taken = self._event(begins[at], ends[at : at + _MAX_PIECES_PER_EVENT])
            short = at + _MAX_PIECES_PER_EVENT > len(begins) and stop - begins[at] < _MAX_EVENT_CHARS
            if taken < 0 and short and not self._last:
                self._result.left = self._data[begins[at] :]
                break
            if taken <= 0:
                final = self._last and at == len(begins) - 1
                self._read_leniently(begins[at], ends[at], final)
            at += max(taken, 1)
        return self._result

    def _event(self, begin: int, ends: list[int]) -> int:
        """Decode the event at `begin`; return how many pieces it took, 0 if broken, -1 if it goes on."""
        for count, end in enumerate(ends, 1):
            piece = self._data[begin:end]
            if len(piece) > _MAX_EVENT_CHARS:
                return 0
            try:
                self._result.events.append(self._form.decode_event.decode(piece))
                return count
            except ERRORS as error:
                place = end_of_value(error)
                if place >= 0:
                    return count if self._decode_with_rest(begin, begin + place, end) else 0
                if "truncated" not in str(error):
                    return 0
        return -1

    def _decode_with_rest(self, begin: int, middle: int, end: int) -> bool:
        """Decode an event followed by the end of the list or by foreign text."""
        try:
            self._result.events.append(self._form.decode_event.decode(self._data[begin:middle]))
        except ERRORS:
            return False
        self._read_leniently(middle, end, False)
        return True

    def _read_leniently(self, begin: int, end: int, final: bool) -> None:
        text = self._data[begin:end].decode(errors="replace")
        reader = _LenientReader(text, self._damage, self._form)
        self._result.events += reader.events(final)
        if reader.tail >= 0:
            place = begin + len(text[: reader.tail].encode())
            self._result.tail = self._data[place:]


class _LenientReader:
    """Reads events from text that may be damaged anywhere."""

    def __init__(self, text: str, damage: Damage, form: EventDecoders) -> None:
        self._text = text
        self._damage = damage
        self._exact = form.exact
        self._typed = form.decode_event
        options: dict[str, Any] = {"parse_float": str} if form.exact else {}
        self._json = json.JSONDecoder(strict=False, **options)
        self._work = 8 * len(text) + 4 * _USUAL_EVENT_CHARS
        self.tail = -1
        """Where the list of events ends, -1 while it does not."""

    def events(self, final: bool) -> Iterator[Event]:
        """Yield the events that can be read; if `final`, an incomplete last event means the file was cut
        off."""
        text, at = self._text, 0
        while at < len(text):
            opens = _OPENS.search(text, at)
            begin = opens.start() if opens else len(text)
            if self._is_end_of_list(at, begin):
                return
            if begin == len(text):
                return
            following = _OPENS.search(text, begin + 1)
            fields, end = self._object(begin)
            if fields is not None:
                at = end
                if "ph" in fields:
                    yield self._to_event(fields, text[begin:end])
                continue
            at = following.start() if following else len(text)
            yield from self._repair_event(begin, at, final and not following)

    def _is_end_of_list(self, at: int, begin: int) -> bool:
        """Whether the list ends between two events; other text between them is counted as foreign."""
        between = self._text[at:begin].strip(" ,")
        if not between:
            return False
        end = _CLOSES.search(self._text, at, begin)
        if end and (begin == len(self._text) or self._text[at : end.start()].strip(" ,") == ""):
            self.tail = end.start()
            return True
        self._damage.dropped["foreign"] += 1
        self._damage.corrupted += _visible_length(between)
        return False

    def _to_event(self, fields: dict[str, Any], text: str) -> Event:
        try:
            return self._typed.decode(text.encode())
        except (*ERRORS, UnicodeEncodeError):
            self._damage.repaired["types"] += 1
            return convert_event(fields, self._exact)

    def _object(self, begin: int) -> tuple[dict[str, Any] | None, int]:
        """Return the JSON object at `begin` and its end, or None if it is broken or costs too much work."""
        for stop in (begin + _USUAL_EVENT_CHARS, len(self._text)):
            if self._work <= 0:
                break
            try:
                fields, end = self._json.raw_decode(self._text[begin:stop])
                return fields, begin + end
            except json.JSONDecodeError as error:
                self._work -= stop - begin if error.msg.startswith("Unterminated") else error.pos
            except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
                self._work -= stop - begin
                break
            if stop >= len(self._text):
                break
        return None, begin

    def _repair_event(self, begin: int, end: int, final: bool) -> list[Event]:
        text = self._text[begin:end].rstrip(" ,")
        if _NO_ITEM.search(text):
            text = _NO_ITEM.sub("-1", text)
            try:
                fields, stop = self._json.raw_decode(text)
            except (ValueError, RecursionError):
                pass
            else:
                if not text[stop:].strip(" ,"):
                    self._damage.repaired["values"] += 1
                    return [convert_event(fields, self._exact)]
        closes = _AFTER.search(text)
        if closes:
            self.tail = begin + closes.start(1)
            text = text[: closes.start(1)].rstrip(" ,")
        if not text.endswith("}"):
            self._damage.dropped["cut" if final else "broken"] += 1
            self._damage.corrupted += 0 if final else _visible_length(text)
            return []
        event = parse_fields(text, self._exact)
        if event is None:
            self._damage.dropped["broken"] += 1
            self._damage.corrupted += _visible_length(text)
            return []
        self._damage.repaired["fields"] += 1
        return [event]


_NEXT = r'(?=,\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:|\}\s*$)'
_NAME = re.compile(r'"name"\s*:\s*"(.*?)"\s*' + _NEXT, re.DOTALL)
_LETTERS = re.compile(r'"(ph|cat)"\s*:\s*"([\w ]*)"')
_NUMBER = r'("?)(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|0x[0-9a-fA-F]+|stream \d+)'
_NUMBERS = re.compile(r'"(ts|dur|pid|tid|id)"\s*:\s*' + _NUMBER + r"\2\s*[,}]")
_STRAY = re.compile(r'"(?:ph|cat|pid|tid|ts|dur|args)"\s*:')
_KEYS = sorted(field.encode_name for field in msgspec.structs.fields(Args))
_ARGUMENTS = re.compile('"(' + "|".join(map(re.escape, _KEYS)) + r')"\s*:\s*' + _NUMBER + r"\2\s*[,}]")
_STRINGS = re.compile(
    r'"(Call stack|cuda_sync_kind|Collective name|Process Group Name)"\s*:\s*"([^"]*)"\s*[,}]'
)


def parse_fields(text: str, exact: bool = False) -> Event | None:
    """Return the event in `text` as far as its fields can be read; None without phase, name, place and
    time."""
    name = _NAME.search(text)
    if name is None or _STRAY.search(name.group(1)):
        return None
    around = text[: name.start()] + text[name.end() :]
    fields: dict[str, Any] = {"name": name.group(1)}
    for letters in _LETTERS.finditer(around):
        fields.setdefault(letters.group(1), letters.group(2))
    for number in _NUMBERS.finditer(around):
        fields.setdefault(number.group(1), _parse_number(number.group(1), number.group(3), exact))
    if not {"ph", "ts", "pid", "tid"} <= fields.keys() or (fields["ph"] == "X" and "dur" not in fields):
        return None
    args: dict[str, Any] = {}
    for argument in _ARGUMENTS.finditer(around):
        args.setdefault(argument.group(1), argument.group(3))
    for string in _STRINGS.finditer(around):
        args.setdefault(string.group(1), string.group(2))
    return convert_event({**fields, "args": args}, exact)


def _parse_number(key: str, text: str, exact: bool) -> Any:
    if key == "dur" or (key == "ts" and not exact):
        return float(text) if text[0] not in "s" and "x" not in text else None
    try:
        return int(text) if key != "ts" else text
    except ValueError:
        return text
