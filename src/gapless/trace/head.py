"""Read what a file says about the whole run, before and after its events."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from gapless.trace.chunks import Rest
from gapless.trace.events import Head

_KEYS = re.compile(
    r'"(deviceProperties|computeProperties|distributedInfo|baseTimeNanoseconds|traceName|with_stack|'
    r'profile_memory|record_shapes|gapless)"\s*:\s*'
)
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_head(rest: Rest) -> Head:
    """Return the head of the file; from a broken one the values that can be read."""
    after = rest.after[1:] if rest.after[:1] == b"]" else rest.after
    try:
        return msgspec.json.decode(rest.before + b"]" + (after.strip() or b"}"), type=Head)
    except _ERRORS:
        pass
    decoder = json.JSONDecoder(strict=False)
    values: dict[str, Any] = {}
    for part in (rest.before, after):
        text = part.decode(errors="replace")
        for key in _KEYS.finditer(text):
            try:
                values.setdefault(key.group(1), decoder.raw_decode(text, key.end())[0])
            except (ValueError, RecursionError):
                continue
    return _convert_valid(values)


def _convert_valid(values: dict[str, Any]) -> Head:
    """Build a head from the values that have the right type."""
    good: dict[str, Any] = {}
    for key, value in values.items():
        try:
            msgspec.convert({key: value}, Head, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError):
            continue
        good[key] = value
    return msgspec.convert(good, Head, strict=False)
