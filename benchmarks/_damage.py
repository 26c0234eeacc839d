"""Ways in which profiles lose evidence: each takes a profile and gives the bytes of a damaged version."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random
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
        return _parsed(self.data)

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


def _parsed(data: bytes) -> dict[str, Any]:
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


def _args(event: Event, **changed: Any) -> Event:
    args = {**event.get("args", {}), **changed}
    return {**event, "args": {key: value for key, value in args.items() if value is not None}}


# Bytes ------------------------------------------------------------------------------------------------


def cut(whole: Whole, random: Random) -> bytes:
    return whole.data[: random.randrange(len(whole.data) // 50, len(whole.data))]


def cut_gzip(whole: Whole, random: Random) -> bytes:
    packed = gzip.compress(whole.data, 4)
    return packed[: random.randrange(len(packed) // 20, len(packed))]


def changed_gzip(whole: Whole, random: Random) -> bytes:
    packed = bytearray(gzip.compress(whole.data, 4))
    for _ in range(random.choice((1, 3))):
        packed[random.randrange(64, len(packed))] = random.randrange(256)
    return bytes(packed)


def two_members(whole: Whole, random: Random) -> bytes:
    at = random.randrange(len(whole.data))
    return gzip.compress(whole.data[:at], 1) + gzip.compress(whole.data[at:], 1)


def changed_bytes(whole: Whole, random: Random) -> bytes:
    data = bytearray(whole.data)
    for _ in range(random.choice((1, 10, 50, 300))):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


def changed_digits(whole: Whole, random: Random) -> bytes:
    """Digits that become other digits: the file stays valid JSON."""
    data = bytearray(whole.data)
    for _ in range(random.choice((5, 50))):
        at = random.randrange(len(data))
        while not 48 <= data[at] <= 57 or data[at - 1] in b'"':
            at = random.randrange(len(data))
        data[at] = random.randrange(49, 58)
    return bytes(data)


def _stretch(whole: Whole, random: Random) -> tuple[int, int]:
    length = min(random.choice((50, 1000, 4096, 65536)), len(whole.data) // 8)
    at = random.randrange(len(whole.data) - length)
    return at, at + length


def garbage(whole: Whole, random: Random) -> bytes:
    begin, end = _stretch(whole, random)
    return whole.data[:begin] + random.randbytes(end - begin) + whole.data[end:]


def zeros(whole: Whole, random: Random) -> bytes:
    """A block that the disk never wrote."""
    begin, end = _stretch(whole, random)
    return whole.data[:begin] + bytes(end - begin) + whole.data[end:]


def hole(whole: Whole, random: Random) -> bytes:
    begin, end = _stretch(whole, random)
    return whole.data[:begin] + whole.data[end:]


def piece_doubled(whole: Whole, random: Random) -> bytes:
    begin, end = _stretch(whole, random)
    return whole.data[:end] + whole.data[begin:end] + whole.data[end:]


def pieces_swapped(whole: Whole, random: Random) -> bytes:
    begin, end = _stretch(whole, random)
    middle = (begin + end) // 2
    return whole.data[:begin] + whole.data[middle:end] + whole.data[begin:middle] + whole.data[end:]


def log_lines(whole: Whole, random: Random) -> bytes:
    data = whole.data
    for number in range(random.choice((1, 5, 40))):
        at = random.randrange(len(data))
        line = f"\n[rank0]: W0712 warning {number}: [{{'loss': nan}}]\n".encode()
        data = data[:at] + line + data[at:]
    return data


def head_lost(whole: Whole, random: Random) -> bytes:
    return whole.data[random.randrange(100, max(len(whole.data) // 3, 101)) :]


def twice(whole: Whole, random: Random) -> bytes:
    return whole.data + random.choice((b"", b"\n")) + whole.data


def followed(whole: Whole, random: Random) -> bytes:
    """Another profile behind it, in one file or as one more gzip member."""
    if random.random() < 0.5:
        return gzip.compress(whole.data, 1) + gzip.compress(whole.other, 1)
    return whole.data + b"\n" + whole.other


# Events -----------------------------------------------------------------------------------------------


def thinned(test: Test) -> Callable[[Whole, Random], bytes]:
    """Some of these events are missing, here and there."""

    def damage(whole: Whole, random: Random) -> bytes:
        share = random.choice((0.02, 0.1, 0.3, 0.6, 0.95))
        return whole.with_events(e for e in whole.events if not test(e) or random.random() >= share)

    return damage


def stretch_lost(test: Test) -> Callable[[Whole, Random], bytes]:
    """Some of these events are missing, one after the other as they stand in the file: a dropped buffer."""

    def damage(whole: Whole, random: Random) -> bytes:
        places = [at for at, event in enumerate(whole.events) if test(event)]
        length = max(int(random.choice((0.05, 0.2, 0.5, 0.9)) * len(places)), 1)
        begin = random.randrange(max(len(places) - length, 1))
        gone = set(places[begin : begin + length])
        return whole.with_events(event for at, event in enumerate(whole.events) if at not in gone)

    return damage


def window_lost(test: Test) -> Callable[[Whole, Random], bytes]:
    """Events are missing that begin within a while."""

    def damage(whole: Whole, random: Random) -> bytes:
        low, high = whole.spans
        length = random.choice((0.05, 0.2, 0.5)) * (high - low)
        begin = random.uniform(low, high - length)
        return whole.with_events(
            e for e in whole.events if not (test(e) and begin <= float(e.get("ts", 0)) < begin + length)
        )

    return damage


def ended_early(test: Test) -> Callable[[Whole, Random], bytes]:
    """Nothing of these is there after some moment: full buffers, or a profiler that was stopped."""

    def damage(whole: Whole, random: Random) -> bytes:
        low, high = whole.spans
        end = low + random.uniform(0.1, 0.95) * (high - low)
        return whole.with_events(e for e in whole.events if not (test(e) and float(e.get("ts", 0)) > end))

    return damage


def one_kernel_lost(whole: Whole, random: Random) -> bytes:
    """All launches of one kernel are unrecorded."""
    names = sorted({e["name"] for e in whole.events if category(e) == "kernel"})
    name = random.choice(names or [""])
    return whole.with_events(e for e in whole.events if not (on_device(e) and e["name"] == name))


def longest_lost(whole: Whole, random: Random) -> bytes:
    """The few longest kernels are missing."""
    kernels = sorted((e for e in whole.events if on_device(e)), key=lambda e: -float(e.get("dur", 0)))
    gone = {id(e) for e in kernels[: max(int(random.choice((0.01, 0.04)) * len(kernels)), 1)]}
    return whole.with_events(e for e in whole.events if id(e) not in gone)


def stream_lost(whole: Whole, random: Random) -> bytes:
    streams = sorted({str(e.get("args", {}).get("stream")) for e in whole.events if on_device(e)})
    stream = random.choice(streams or [""])
    return whole.with_events(
        e for e in whole.events if not (on_device(e) and str(e.get("args", {}).get("stream")) == stream)
    )


def graphs_without_kernels(whole: Whole, random: Random) -> bytes:
    """Graph launches whose kernels were not recorded; of any launch, where there are no graphs."""
    calls = [e for e in whole.events if is_call(e) and "GraphLaunch" in e["name"]]
    calls = calls or [e for e in whole.events if is_call(e) and "Launch" in e["name"]]
    chosen = {e["args"].get("correlation") for e in calls if random.random() < 0.8}
    return whole.with_events(
        e for e in whole.events if not (on_device(e) and e.get("args", {}).get("correlation") in chosen)
    )


def without_numbers(whole: Whole, random: Random) -> bytes:
    """Correlation ids are missing, of calls, of work, or of both."""
    of_calls, of_work = random.choice(((True, False), (False, True), (True, True)))
    share = random.choice((0.3, 1.0))

    def bare(event: Event) -> Event:
        named = (of_calls and is_call(event)) or (of_work and on_device(event))
        return _args(event, correlation=None) if named and random.random() < share else event

    return whole.with_events(map(bare, whole.events))


def without_times(whole: Whole, random: Random) -> bytes:
    """Times that are no numbers, or 0."""
    value = random.choice((float("nan"), 0, None))
    key = random.choice(("ts", "dur"))
    share = random.choice((0.01, 0.2))
    return whole.with_events(
        {**e, key: value} if e.get("ph") == "X" and random.random() < share else e for e in whole.events
    )


def without_arrows(whole: Whole, random: Random) -> bytes:
    return whole.with_events(e for e in whole.events if not is_arrow(e))


def without_ends_of_arrows(whole: Whole, random: Random) -> bytes:
    return whole.with_events(e for e in whole.events if e.get("ph") != "f")


def without_head(whole: Whole, random: Random) -> bytes:
    """Only the list of events, without devices, ranks and the base of the clock."""
    return json.dumps(whole.events).encode()


def without_places(whole: Whole, random: Random) -> bytes:
    """Work that does not say its device and stream."""
    return whole.with_events(_args(e, device=None, stream=None) if on_device(e) else e for e in whole.events)


def shuffled(whole: Whole, random: Random) -> bytes:
    events = whole.events
    random.shuffle(events)
    return whole.with_events(events)


def events_doubled(whole: Whole, random: Random) -> bytes:
    events = whole.events
    length = int(random.choice((0.05, 0.4)) * len(events))
    begin = random.randrange(max(len(events) - length, 1))
    return whole.with_events([*events, *events[begin : begin + length]])


def two_processes(whole: Whole, random: Random) -> bytes:
    """Another process's events among its own, as tools that merge ranks write them."""
    same_clock = random.random() < 0.5
    low = whole.spans[0]
    other = Whole(whole.other)
    shift = low - other.spans[0] if same_clock else 0.0
    renamed = random.random() < 0.5
    moved = []
    for event in other.events:
        one = copy.copy(event)
        if "ts" in one:
            one["ts"] = float(one["ts"]) + shift
        if renamed and not on_device(one) and isinstance(one.get("pid"), int):
            one["pid"] += 100_000
        moved.append(one)
    return whole.with_events([*whole.events, *moved])


def clock_of_the_device_off(whole: Whole, random: Random) -> bytes:
    low, high = whole.spans
    shift = random.choice((-1, 1)) * random.choice((0.05, 0.5, 2.0)) * (high - low)
    return whole.with_events({**e, "ts": float(e["ts"]) + shift} if on_device(e) else e for e in whole.events)


def clock_reset(whole: Whole, random: Random) -> bytes:
    """From some moment on all times are another clock's."""
    low, high = whole.spans
    when = random.uniform(low, high)
    shift = random.choice((-(when - low), -0.3 * (high - low), 3 * (high - low), 60e6))
    return whole.with_events(
        {**e, "ts": float(e["ts"]) + shift} if anything(e) and float(e.get("ts", 0)) > when else e
        for e in whole.events
    )


BYTES = (
    cut, cut_gzip, changed_gzip, two_members, changed_bytes, changed_digits, garbage, zeros, hole,
    piece_doubled, pieces_swapped, log_lines, head_lost, twice, followed,
)  # fmt: skip
EVENTS = (
    one_kernel_lost, longest_lost, stream_lost, graphs_without_kernels, without_numbers, without_times,
    without_arrows, without_ends_of_arrows, without_head, without_places, shuffled, events_doubled,
    two_processes, clock_of_the_device_off, clock_reset,
)  # fmt: skip
_TESTS: dict[str, Test] = {
    "anything": anything,
    "work": on_device,
    "calls": is_call,
    "operators": is_operator,
    "annotations": is_annotation,
}
KINDS: dict[str, Callable[[Whole, Random], bytes]] = {
    **{one.__name__: one for one in (*BYTES, *EVENTS)},
    **{f"thinned {name}": thinned(test) for name, test in _TESTS.items()},
    **{f"stretch of {name} lost": stretch_lost(test) for name, test in _TESTS.items()},
    **{f"window of {name} lost": window_lost(_TESTS[name]) for name in ("anything", "work", "calls")},
    # Without anything after some moment it is a shorter recording, and a whole one.
    **{f"{name} ended early": ended_early(_TESTS[name]) for name in ("work", "calls")},
}
"""Every kind of damage, by name."""


def damaged(whole: Whole, kind: str, seed: int) -> bytes:
    """The version of `whole` that `kind` and `seed` make."""
    return KINDS[kind](whole, Random(f"{kind} {seed}"))
