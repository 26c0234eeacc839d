"""Ways in which profiles lose evidence: each takes a profile and gives the bytes of a damaged version."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from random import Random
from typing import Any

from _whole import (
    Event,
    Test,
    Whole,
    anything,
    category,
    is_annotation,
    is_arrow,
    is_call,
    is_operator,
    on_device,
)


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
    """Drop some of the events matching `test`, at random."""

    def damage(whole: Whole, random: Random) -> bytes:
        share = random.choice((0.02, 0.1, 0.3, 0.6, 0.95))
        return whole.with_events(e for e in whole.events if not test(e) or random.random() >= share)

    return damage


def stretch_lost(test: Test) -> Callable[[Whole, Random], bytes]:
    """Drop a run of the matching events, as they follow in the file: a dropped buffer."""

    def damage(whole: Whole, random: Random) -> bytes:
        places = [at for at, event in enumerate(whole.events) if test(event)]
        length = max(int(random.choice((0.05, 0.2, 0.5, 0.9)) * len(places)), 1)
        begin = random.randrange(max(len(places) - length, 1))
        gone = set(places[begin : begin + length])
        return whole.with_events(event for at, event in enumerate(whole.events) if at not in gone)

    return damage


def window_lost(test: Test) -> Callable[[Whole, Random], bytes]:
    """Drop the matching events that begin within an interval."""

    def damage(whole: Whole, random: Random) -> bytes:
        low, high = whole.spans
        length = random.choice((0.05, 0.2, 0.5)) * (high - low)
        begin = random.uniform(low, high - length)
        return whole.with_events(
            e for e in whole.events if not (test(e) and begin <= float(e.get("ts", 0)) < begin + length)
        )

    return damage


def ended_early(test: Test) -> Callable[[Whole, Random], bytes]:
    """Drop the matching events after some moment: full buffers, or a stopped profiler."""

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
    """Drop the kernels of some graph launches, or of any launches if no graph is launched."""
    calls = [e for e in whole.events if is_call(e) and "GraphLaunch" in e["name"]]
    calls = calls or [e for e in whole.events if is_call(e) and "Launch" in e["name"]]
    chosen = {e["args"].get("correlation") for e in calls if random.random() < 0.8}
    return whole.with_events(
        e for e in whole.events if not (on_device(e) and e.get("args", {}).get("correlation") in chosen)
    )


def without_numbers(whole: Whole, random: Random) -> bytes:
    """Drop the correlation ids of calls, of work, or of both."""
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
    """Add another process's events, as tools that merge ranks write them."""
    same_clock = random.random() < 0.5
    low = whole.spans[0]
    other = Whole(whole.other)
    shift = low - other.spans[0] if same_clock else 0.0
    renamed = random.random() < 0.5
    moved = []
    for event in other.events:
        moved_event = copy.copy(event)
        if "ts" in moved_event:
            moved_event["ts"] = float(moved_event["ts"]) + shift
        if renamed and not on_device(moved_event) and isinstance(moved_event.get("pid"), int):
            moved_event["pid"] += 100_000
        moved.append(moved_event)
    return whole.with_events([*whole.events, *moved])


def clock_of_the_device_off(whole: Whole, random: Random) -> bytes:
    low, high = whole.spans
    shift = random.choice((-1, 1)) * random.choice((0.05, 0.5, 2.0)) * (high - low)
    return whole.with_events({**e, "ts": float(e["ts"]) + shift} if on_device(e) else e for e in whole.events)


def clock_reset(whole: Whole, random: Random) -> bytes:
    """Shift all times after some moment, as when the clock is reset."""
    low, high = whole.spans
    when = random.uniform(low, high)
    shift = random.choice((-(when - low), -0.3 * (high - low), 3 * (high - low), 60e6))
    return whole.with_events(
        {**e, "ts": float(e["ts"]) + shift} if anything(e) and float(e.get("ts", 0)) > when else e
        for e in whole.events
    )


def _correlation(event: Event) -> Any:
    """Return the correlation id that ties a launch to its work; None for other events."""
    tied = on_device(event) or (is_call(event) and "Synchronize" not in event["name"])
    return event.get("args", {}).get("correlation") if tied else None


def _without_pairs(whole: Whole, gone: set[Any]) -> bytes:
    """Drop these launches, their work and the arrows between them."""
    return whole.with_events(
        e for e in whole.events
        if not (_correlation(e) in gone or (is_arrow(e) and e.get("cat") != "fwdbwd" and e.get("id") in gone))
    )  # fmt: skip


def _launches(whole: Whole) -> list[Event]:
    work = {_correlation(e) for e in whole.events if on_device(e)}
    calls = [e for e in whole.events if is_call(e) and _correlation(e) in work]
    return sorted(calls, key=lambda e: float(e["ts"]))


def pairs_thinned(whole: Whole, random: Random) -> bytes:
    """Drop some launches with everything that records them."""
    share = random.choice((0.1, 0.3, 0.7))
    return _without_pairs(whole, {_correlation(e) for e in _launches(whole) if random.random() < share})


def pairs_of_a_while_lost(whole: Whole, random: Random) -> bytes:
    """Drop the launches of one or more intervals with everything that records them."""
    calls, gone = _launches(whole), set()
    for _ in range(random.choice((1, 1, 3))):
        length = max(int(random.choice((0.05, 0.2, 0.5)) * len(calls)), 1)
        begin = random.randrange(max(len(calls) - length, 1))
        gone |= {_correlation(e) for e in calls[begin : begin + length]}
    return _without_pairs(whole, gone)


def everything_of_whiles_lost(whole: Whole, random: Random) -> bytes:
    """Drop host events of several intervals, and the work launched in them."""
    low, high = whole.spans
    length = random.choice((0.02, 0.1)) * (high - low)
    begins = [random.uniform(low, high - length) for _ in range(random.choice((1, 3, 5)))]

    def lost(event: Event) -> bool:
        when = float(event.get("ts", 0))
        return any(begin <= when < begin + length for begin in begins)

    gone = {_correlation(e) for e in _launches(whole) if lost(e)} - {None}
    return whole.with_events(
        e for e in whole.events if not (_correlation(e) in gone if on_device(e) else anything(e) and lost(e))
    )


def holes(whole: Whole, random: Random) -> bytes:
    """Drop several runs of events, as they follow in the file."""
    events = whole.events
    for _ in range(random.choice((2, 5))):
        length = int(random.choice((0.02, 0.1)) * len(events))
        begin = random.randrange(max(len(events) - length, 1))
        events = events[:begin] + [e for e in events[begin : begin + length] if not anything(e)] + events[
            begin + length :
        ]  # fmt: skip
    return whole.with_events(events)


def cut_and_closed(whole: Whole, random: Random) -> bytes:
    """Cut the events off and close the JSON again."""
    events = whole.events
    return whole.with_events(events[: random.randrange(len(events) // 20, len(events))])


def cut_by_time(whole: Whole, random: Random) -> bytes:
    """Drop the beginning or the end, except the profiler's own marks."""
    low, high = whole.spans
    when = random.uniform(low, high)
    after = random.random() < 0.5
    return whole.with_events(
        e for e in whole.events
        if str(e.get("name", "")).startswith(("PyTorch Profiler", "Record Window End"))
        or not anything(e) or (float(e.get("ts", 0)) < when) is after
    )  # fmt: skip


def lines_lost(whole: Whole, random: Random) -> bytes:
    """Lines of the file are missing."""
    lines = json.dumps(whole.document, indent=1).encode().split(b"\n")
    for _ in range(random.choice((1, 10, 100))):
        del lines[random.randrange(len(lines))]
    return b"\n".join(lines)


def thread_lost(whole: Whole, random: Random) -> bytes:
    """Drop everything one thread did."""
    threads = sorted({str(e.get("tid")) for e in whole.events if is_operator(e)})
    thread = random.choice(threads or [""])
    return whole.with_events(
        e for e in whole.events if on_device(e) or not anything(e) or str(e.get("tid")) != thread
    )


def marks_lost(whole: Whole, random: Random) -> bytes:
    """Drop step marks, some or all."""
    share = random.choice((0.4, 1.0))

    def mark(event: Event) -> bool:
        return str(event.get("name", "")).startswith(("ProfilerStep", "Optimizer.step"))

    return whole.with_events(e for e in whole.events if not (mark(e) and random.random() < share))


def lengths_off(whole: Whole, random: Random) -> bytes:
    """Scale durations wrongly."""
    factor, share = random.choice((0.0, 10.0)), random.choice((0.05, 1.0))
    return whole.with_events(
        {**e, "dur": round(float(e["dur"]) * factor, 3)} if on_device(e) and random.random() < share else e
        for e in whole.events
    )


def numbers_swapped(whole: Whole, random: Random) -> bytes:
    """Exchange correlation ids between launches."""
    wanted = [e for e in whole.events if on_device(e)]
    numbers = [_correlation(e) for e in wanted]
    some = random.sample(range(len(wanted)), max(int(random.choice((0.1, 1.0)) * len(wanted)), 1))
    shuffled_numbers = [numbers[at] for at in some]
    random.shuffle(shuffled_numbers)
    for at, number in zip(some, shuffled_numbers, strict=True):
        numbers[at] = number
    number_of = dict(zip(map(id, wanted), numbers, strict=True))
    return whole.with_events(
        _args(e, correlation=number_of[id(e)]) if id(e) in number_of else e for e in whole.events
    )


BYTES = (
    cut, cut_gzip, changed_gzip, two_members, changed_bytes, changed_digits, garbage, zeros, hole,
    piece_doubled, pieces_swapped, log_lines, head_lost, twice, followed,
)  # fmt: skip
EVENTS = (
    one_kernel_lost, longest_lost, stream_lost, graphs_without_kernels, without_numbers, without_times,
    without_arrows, without_ends_of_arrows, without_head, without_places, shuffled, events_doubled,
    two_processes, clock_of_the_device_off, clock_reset, pairs_thinned, pairs_of_a_while_lost,
    everything_of_whiles_lost, holes, cut_and_closed, cut_by_time, lines_lost, thread_lost, marks_lost,
    lengths_off, numbers_swapped,
)  # fmt: skip
_TESTS: dict[str, Test] = {
    "anything": anything,
    "work": on_device,
    "calls": is_call,
    "operators": is_operator,
    "annotations": is_annotation,
}
KINDS: dict[str, Callable[[Whole, Random], bytes]] = {
    **{damage.__name__: damage for damage in (*BYTES, *EVENTS)},
    **{f"thinned {name}": thinned(test) for name, test in _TESTS.items()},
    **{f"stretch of {name} lost": stretch_lost(test) for name, test in _TESTS.items()},
    **{f"window of {name} lost": window_lost(_TESTS[name]) for name in ("anything", "work", "calls")},
    # `anything` is absent: cut off at some moment it is just a shorter recording.
    **{f"{name} ended early": ended_early(_TESTS[name]) for name in ("work", "calls")},
}
"""Every kind of damage, by name."""


def damage_profile(whole: Whole, kind: str, seed: int) -> bytes:
    """Return the version of `whole` damaged by `kind` with random `seed`."""
    return KINDS[kind](whole, Random(f"{kind} {seed}"))
