"""Read the fields of an event one by one, from text that is not valid JSON."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gapless.trace.events import Args, Event, convert_event

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
