"""An undamaged profile, and tests of its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Event = dict[str, Any]
Test = Callable[[Event], bool]


@dataclass(frozen=True)
class Whole:
    """An undamaged profile: its bytes and content. `other` is a profile of another process."""

    data: bytes
    other: bytes = b""

    @cached_property
    def document(self) -> dict[str, Any]:
        return parse(self.data)

    @property
    def events(self) -> list[Event]:
        """A new list; the events in it are shared and must not be changed."""
        return list(self.document["traceEvents"])

    @cached_property
    def spans(self) -> tuple[float, float]:
        """Begin of the first event and end of the last, microseconds."""
        timed = [event for event in self.document["traceEvents"] if event.get("ph") == "X"]
        starts = [float(event["ts"]) for event in timed if float(event["ts"]) > 0]
        return min(starts), max(float(event["ts"]) + float(event.get("dur", 0)) for event in timed)

    def with_events(self, events: Iterable[Event]) -> bytes:
        """Return the same file with other events."""
        return json.dumps({**self.document, "traceEvents": list(events)}).encode()


def parse(data: bytes) -> dict[str, Any]:
    document = json.loads(data.decode(errors="replace"), strict=False)
    return document if isinstance(document, dict) else {"traceEvents": document}


def category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def on_device(event: Event) -> bool:
    return category(event) in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


def is_call(event: Event) -> bool:
    return category(event) in ("cuda_runtime", "cuda_driver", "runtime")


def is_operator(event: Event) -> bool:
    return category(event) in ("cpu_op", "operator")


def is_annotation(event: Event) -> bool:
    return category(event) == "user_annotation" or str(event.get("name", "")).startswith("ProfilerStep")


def is_arrow(event: Event) -> bool:
    return event.get("ph") in ("s", "f", "t")


def anything(event: Event) -> bool:
    return event.get("ph") != "M"
