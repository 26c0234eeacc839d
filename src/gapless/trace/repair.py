"""Events out of JSON that is none."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from gapless.trace.events import TraceEvent

_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_decoder = msgspec.json.Decoder(TraceEvent)


@dataclass
class Damage:
    """What was found broken: how many events each repair saved, and how many were lost to what."""

    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def salvage(data: bytes, last: bool, damage: Damage) -> tuple[list[TraceEvent], int, bool]:
    """The events that can be had from `data`, one by one.

    Returns also where the tail of the file begins (-1: not in here) and whether the file is cut off.
    """
    found = []
    for text in _BETWEEN.split(data.rstrip().rstrip(b",")):
        try:
            found.append(_decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            damage.dropped["that are no JSON"] += 1
    return found, (len(data) if last else -1), last
