"""A profile that is whole, and what its events are."""

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
    """A profile as it was: its bytes, and what is in them. `other` is one more, of another process."""

    data: bytes
    other: bytes = b""

    @cached_property
    def document(self) -> dict[str, Any]:
        return parsed(self.data)

    @property
    def events(self) -> list[Event]:
        """A list of its own; the events in it are shared and must not be changed."""
        return list(self.document["traceEvents"])

    @cached_property
    def spans(self) -> tuple[float, float]:
        """When the first event begins and the last one ends, microseconds."""
        timed = [one for one in self.document["traceEvents"] if one.get("ph") == "X"]
        starts = [float(one["ts"]) for one in timed if float(one["ts"]) > 0]
        return min(starts), max(float(one["ts"]) + float(one.get("dur", 0)) for one in timed)

    def with_events(self, events: Iterable[Event]) -> bytes:
        """The same file with other events."""
        return json.dumps({**self.document, "traceEvents": list(events)}).encode()


def parsed(data: bytes) -> dict[str, Any]:
    found = json.loads(data.decode(errors="replace"), strict=False)
    return found if isinstance(found, dict) else {"traceEvents": found}


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
