"""Snapshots of ``torch.cuda.memory._snapshot()`` as `MemoryRun`: one for each device that has a history."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from gapless.errors import UnreadableInput
from gapless.files.input import read_whole
from gapless.files.sources import ZSTD, unpacked
from gapless.memory.frames import Places
from gapless.memory.history import History
from gapless.memory.settings import InvalidSettings, Settings, parse
from gapless.memory.start import starting
from gapless.memory.timing import call_times
from gapless.memory.unpack import gunzipped
from gapless.memory.unpickle import plain
from gapless.model.memory import MemoryRun, check

_EMBEDDED = re.compile(rb'"base64":\s*"([A-Za-z0-9+/=]+)"')
_MOVES = frozenset(
    (
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
    )
)
"""Actions with an address."""
_TELLING = _MOVES | {"oom"}
"""Actions that say that a process uses a device."""
_ACTIONS = _TELLING | {"snapshot"}


def read(path: str) -> tuple[MemoryRun, ...]:
    """The runs in the snapshot at `path`: a pickle, or a page of PyTorch's memory viewer that holds one.

    Raises:
        UnreadableInput: it cannot be read, is no snapshot, or would have to import something.
    """
    data = read_whole(path)
    return of_bytes(unpacked(data, path) if data.startswith(ZSTD) else data, path)


def of_bytes(data: bytes, name: str) -> tuple[MemoryRun, ...]:
    """The runs in the bytes of a snapshot; `name` stands for it in messages."""
    if data.startswith(b"\x1f\x8b"):
        data = gunzipped(data, name)
    head = data[:4096].lstrip()
    if head.startswith(b"<") and b"MemoryViz" in data[:65536]:
        data = _embedded(data, name)
    value = _json(data, name) if head[:1] in (b"{", b"[") else plain(data, name)
    return of_value(value, name, len(data))


def _embedded(data: bytes, name: str) -> bytes:
    found = _EMBEDDED.search(data)
    try:
        return base64.b64decode(found.group(1), validate=True) if found else b""
    except binascii.Error:
        raise UnreadableInput(f"{name} is a memory viewer page whose snapshot is damaged") from None


def _json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{name} is damaged JSON: {error}") from None


def of_value(value: Any, name: str, most: int = -1) -> tuple[MemoryRun, ...]:
    """The runs of a snapshot that is in memory already.

    `most` bounds the blocks and entries it may have (-1: any number): a file of so many bytes that has more
    says the same again and again.

    Raises:
        UnreadableInput: it is something else.
    """
    if _are_segments(value):
        value = {"segments": value, "device_traces": []}
    elif isinstance(value, dict) and "device_traces" not in value and _are_segments(value.get("segments")):
        value = {**value, "device_traces": []}
    if not isinstance(value, dict) or "segments" not in value or "device_traces" not in value:
        raise UnreadableInput(f"{name} is not a memory snapshot: it has no segments and device_traces")
    for one, what in (("segments", "not a list"), ("device_traces", "not lists")):
        if not isinstance(value[one], list):
            raise UnreadableInput(f"{name} is not a memory snapshot: its {one} are {what}")
    if 0 <= most < _length(value):
        raise UnreadableInput(f"{name} is not a memory snapshot: it contains itself")
    segments, traces = _checked_segments(value, name), _checked_traces(value, name)
    devices = sorted({segment["device"] for segment in segments} | {n for n, t in enumerate(traces) if t})
    if not devices:
        raise UnreadableInput(f"{name} is empty: no memory is reserved, and nothing was recorded")
    settings, notes = _settings(value)
    runs = []
    for device in devices:
        mine = [segment for segment in segments if segment["device"] == device]
        trace = traces[device] if device < len(traces) else []
        if not mine and not any(entry["action"] in _TELLING for entry in trace) and len(devices) > 1:
            continue  # torch keeps a trace of each device, whether the process uses it or not
        told = value.get("external_annotations")
        marks = [m for m in told if _is_mark(m, device)] if isinstance(told, list) else []
        run = _run(name, device, mine, trace, settings, notes, marks)
        problem = check(run)
        if problem:
            raise UnreadableInput(f"{name} is a damaged snapshot: {problem}")
        runs.append(run)
    return tuple(runs)


def _run(
    name: str,
    device: int,
    segments: list[Any],
    trace: list[Any],
    settings: tuple[str, Settings],
    notes: list[str],
    marks: list[Any],
) -> MemoryRun:
    places = Places()
    rewound = starting(segments, trace, settings[1], name)
    history = History(trace, settings[1], rewound, places, marks)
    start = history.starting()
    recorded = history.recorded()
    return MemoryRun(
        origin="snapshot",
        path=name,
        device=device,
        limit=history.limit(),
        settings=settings[0],
        action=tuple(history.action),
        ident=tuple(history.ident),
        size=tuple(history.size),
        stream=tuple(history.stream),
        place=tuple(history.place),
        time=tuple(history.time) if history.timed else (),
        address=tuple(history.address),
        pool=tuple(history.pool) if any(history.pool) else (),
        pools=tuple(history.pools),
        places=tuple(places.places),
        lines=tuple(places.lines),
        start=start,
        recorded=recorded,
        times=call_times(trace),
        began=history.began,
        refusals=history.refusals(),
        notes=(*notes, *history.notes()),
    )


def _settings(value: dict[str, Any]) -> tuple[tuple[str, Settings], list[str]]:
    """The settings of the recorded run, and what is to be said of them."""
    told = value.get("allocator_settings")
    if not isinstance(told, dict):
        text = _EXPANDABLE if _mapped(value) else ""
        seen = f" except {text}, which the history shows" if text else ""
        note = f"the snapshot does not contain its settings: PyTorch's defaults are assumed{seen}"
        return (text, parse(text)), [note]
    text = told.get("PYTORCH_CUDA_ALLOC_CONF") or told.get("PYTORCH_ALLOC_CONF") or ""
    if not isinstance(text, str):
        return ("", Settings()), ["its settings are not text: PyTorch's defaults are assumed"]
    if told.get("expandable_segments") is True and "expandable_segments" not in text:
        text = f"{text},{_EXPANDABLE}".lstrip(",")  # a build's own default
    try:
        return (text, parse(text)), []
    except InvalidSettings as error:
        return ("", Settings()), [f"its settings {text!r} cannot be read ({error}): defaults are assumed"]


def _mapped(value: dict[str, Any]) -> bool:
    """Whether all segments that the history asks the driver for are expandable."""
    actions = {entry["action"] for trace in value["device_traces"] for entry in trace}
    return "segment_map" in actions and "segment_alloc" not in actions


def _is_mark(mark: Any, device: int) -> bool:
    return (
        isinstance(mark, dict)
        and isinstance(mark.get("name"), str)
        and type(mark.get("time_us")) is int
        and mark.get("device") == device
    )


# What a snapshot must be made of ------------------------------------------------------------------

_EXPANDABLE = "expandable_segments:True"
_MOST = {"address": 1 << 64, "addr": 1 << 64, "stream": 1 << 64, "device": 1 << 10}
"""Bounds of numbers; of sizes and the rest `_LARGEST`."""
_LARGEST = 1 << 60
_DEEPEST = 5_000
"""Calls of a stack: Python alone goes no deeper than a thousand unless it is told to."""


def _length(value: dict[str, Any]) -> int:
    """How many blocks and entries there are, those that are the same object counted each time."""
    lists = [segment.get("blocks") for segment in value["segments"] if isinstance(segment, dict)] + list(
        value["device_traces"]
    )
    return sum(len(one) for one in lists if isinstance(one, list))


def _checked_segments(value: dict[str, Any], name: str) -> list[Any]:
    segments: list[Any] = value["segments"]
    for segment in segments:
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        if isinstance(segment, dict):
            segment.setdefault("stream", 0)  # torch before 1.12 does not tell
        if not isinstance(blocks, list) or not _numbers(segment, "address", "total_size", "stream", "device"):
            raise UnreadableInput(f"{name} is a damaged snapshot: a segment is incomplete")
        for one in blocks:
            state = one.get("state") if isinstance(one, dict) else None
            if not isinstance(state, str) or not _numbers(one, "size"):
                raise UnreadableInput(f"{name} is a damaged snapshot: a block is incomplete")
    return segments


def _checked_traces(value: dict[str, Any], name: str) -> list[list[Any]]:
    traces: list[list[Any]] = value["device_traces"]
    if len(traces) > _MOST["device"] or not all(isinstance(trace, list) for trace in traces):
        raise UnreadableInput(f"{name} is not a memory snapshot: its device_traces are not lists")
    for trace in traces:
        for entry in trace:
            action = entry.get("action") if isinstance(entry, dict) else None
            frames = entry.get("frames") if isinstance(entry, dict) else None
            if isinstance(frames, list) and len(frames) > _DEEPEST:
                raise UnreadableInput(
                    f"{name} is not a memory snapshot: it has a stack of {len(frames)} calls"
                )
            if not isinstance(action, str):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry of the trace has no action")
            if action in _ACTIONS and not _numbers(entry, "size", "stream"):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry ({action}) is incomplete")
            if action in _MOVES and not _numbers(entry, "addr"):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry ({action}) has no address")
    return traces


def _are_segments(value: Any) -> bool:
    """Whether it is what ``torch.cuda.memory_snapshot()`` gives, and ``_snapshot()`` before torch 2.0."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and "total_size" in one and "blocks" in one for one in value)
    )


def _numbers(value: dict[str, Any], *names: str) -> bool:
    """Whether `value` has these as numbers that can be what their names say."""
    for name in names:
        one = value.get(name)
        if type(one) is not int or not 0 <= one < _MOST.get(name, _LARGEST):
            return False
    return True
