"""Read snapshots of ``torch.cuda.memory._snapshot()``: a `MemoryRun` for each device with a history."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from gapless.errors import UnreadableInput
from gapless.files.input import read_whole
from gapless.files.sources import ZSTD, decompress
from gapless.memory.frames import PlaceTable
from gapless.memory.history import History
from gapless.memory.settings import InvalidSettings, Settings, parse
from gapless.memory.start import rewind_to_start
from gapless.memory.timing import call_times
from gapless.memory.unpickle import load_plain
from gapless.model.memory import MemoryRun, check

_EMBEDDED_SNAPSHOT = re.compile(rb'"base64":\s*"([A-Za-z0-9+/=]+)"')
_ADDRESS_ACTIONS = frozenset(
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
_USE_ACTIONS = _ADDRESS_ACTIONS | {"oom"}
"""Actions that show that a process uses the device."""
_ACTIONS = _USE_ACTIONS | {"snapshot"}


def read(path: str) -> tuple[MemoryRun, ...]:
    """Read the runs in the snapshot at `path`: a pickle, or a page of PyTorch's memory viewer with one.

    Raises:
        UnreadableInput: it cannot be read, is no snapshot, or would have to import something.
    """
    data = read_whole(path)
    return read_bytes(decompress(data, path) if data.startswith(ZSTD) else data, path)


def read_bytes(data: bytes, name: str) -> tuple[MemoryRun, ...]:
    """Read the runs in the bytes of a snapshot; `name` is used in messages."""
    if data.startswith(b"\x1f\x8b"):
        data = gunzip(data, name)
    head = data[:4096].lstrip()
    if head.startswith(b"<") and b"MemoryViz" in data[:65536]:
        data = _extract_snapshot(data, name)
    value = _parse_json(data, name) if head[:1] in (b"{", b"[") else load_plain(data, name)
    return read_value(value, name, len(data))


def _extract_snapshot(data: bytes, name: str) -> bytes:
    match = _EMBEDDED_SNAPSHOT.search(data)
    try:
        return base64.b64decode(match.group(1), validate=True) if match else b""
    except binascii.Error:
        raise UnreadableInput(f"{name} is a memory viewer page whose snapshot is damaged") from None


def _parse_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{name} is damaged JSON: {error}") from None


def read_value(value: Any, name: str, max_items: int = -1) -> tuple[MemoryRun, ...]:
    """Return the runs of a snapshot that is already in memory.

    `max_items` bounds its blocks and entries (-1: any number): a file of that many bytes that has more refers
    to itself.

    Raises:
        UnreadableInput: it is something else.
    """
    if _are_segments(value):
        value = {"segments": value, "device_traces": []}
    elif isinstance(value, dict) and "device_traces" not in value and _are_segments(value.get("segments")):
        value = {**value, "device_traces": []}
    if not isinstance(value, dict) or "segments" not in value or "device_traces" not in value:
        raise UnreadableInput(f"{name} is not a memory snapshot: it has no segments and device_traces")
    for key, mistake in (("segments", "not a list"), ("device_traces", "not lists")):
        if not isinstance(value[key], list):
            raise UnreadableInput(f"{name} is not a memory snapshot: its {key} are {mistake}")
    if 0 <= max_items < _count_items(value):
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
        if not mine and not any(entry["action"] in _USE_ACTIONS for entry in trace) and len(devices) > 1:
            continue  # torch keeps a trace of each device, used or not
        annotations = value.get("external_annotations")
        marks = [m for m in annotations if _is_mark(m, device)] if isinstance(annotations, list) else []
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
    places = PlaceTable()
    rewound = rewind_to_start(segments, trace, settings[1], name)
    history = History(trace, settings[1], rewound, places, marks)
    start = history.start_segments()
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
    """Return the settings of the recorded run as text and parsed, and notes about them."""
    recorded = value.get("allocator_settings")
    if not isinstance(recorded, dict):
        text = _EXPANDABLE if _uses_expandable(value) else ""
        exception = f" except {text}, which the history shows" if text else ""
        note = f"the snapshot does not contain its settings: PyTorch's defaults are assumed{exception}"
        return (text, parse(text)), [note]
    text = recorded.get("PYTORCH_CUDA_ALLOC_CONF") or recorded.get("PYTORCH_ALLOC_CONF") or ""
    if not isinstance(text, str):
        return ("", Settings()), ["its settings are not text: PyTorch's defaults are assumed"]
    if recorded.get("expandable_segments") is True and "expandable_segments" not in text:
        text = f"{text},{_EXPANDABLE}".lstrip(",")  # a build's own default
    try:
        return (text, parse(text)), []
    except InvalidSettings as error:
        return ("", Settings()), [f"its settings {text!r} cannot be read ({error}): defaults are assumed"]


def _uses_expandable(value: dict[str, Any]) -> bool:
    """Whether all segments requested in the history are expandable."""
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
_MAX_VALUES = {"address": 1 << 64, "addr": 1 << 64, "stream": 1 << 64, "device": 1 << 10}
"""Upper bounds of numbers by name; for sizes and the rest `_MAX_VALUE`."""
_MAX_VALUE = 1 << 60
"""Bytes that no device has."""
_MAX_STACK_DEPTH = 5_000
"""Calls of a stack: Python's default limit is a thousand."""


def _count_items(value: dict[str, Any]) -> int:
    """Count blocks and entries; repeated references to one object count each time."""
    lists = [segment.get("blocks") for segment in value["segments"] if isinstance(segment, dict)] + list(
        value["device_traces"]
    )
    return sum(len(items) for items in lists if isinstance(items, list))


def _checked_segments(value: dict[str, Any], name: str) -> list[Any]:
    segments: list[Any] = value["segments"]
    for segment in segments:
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        if isinstance(segment, dict):
            segment.setdefault("stream", 0)  # torch before 1.12 does not write it
        if not isinstance(blocks, list) or not _has_numbers(
            segment, "address", "total_size", "stream", "device"
        ):
            raise UnreadableInput(f"{name} is a damaged snapshot: a segment is incomplete")
        for block in blocks:
            state = block.get("state") if isinstance(block, dict) else None
            if not isinstance(state, str) or not _has_numbers(block, "size"):
                raise UnreadableInput(f"{name} is a damaged snapshot: a block is incomplete")
    return segments


def _checked_traces(value: dict[str, Any], name: str) -> list[list[Any]]:
    traces: list[list[Any]] = value["device_traces"]
    if len(traces) > _MAX_VALUES["device"] or not all(isinstance(trace, list) for trace in traces):
        raise UnreadableInput(f"{name} is not a memory snapshot: its device_traces are not lists")
    for trace in traces:
        for entry in trace:
            action = entry.get("action") if isinstance(entry, dict) else None
            frames = entry.get("frames") if isinstance(entry, dict) else None
            if isinstance(frames, list) and len(frames) > _MAX_STACK_DEPTH:
                raise UnreadableInput(
                    f"{name} is not a memory snapshot: it has a stack of {len(frames)} calls"
                )
            if not isinstance(action, str):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry of the trace has no action")
            if action in _ACTIONS and not _has_numbers(entry, "size", "stream"):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry ({action}) is incomplete")
            if action in _ADDRESS_ACTIONS and not _has_numbers(entry, "addr"):
                raise UnreadableInput(f"{name} is a damaged snapshot: an entry ({action}) has no address")
    return traces


def _are_segments(value: Any) -> bool:
    """Whether `value` comes from ``torch.cuda.memory_snapshot()``, or ``_snapshot()`` before torch 2.0."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(segment, dict) and "total_size" in segment and "blocks" in segment for segment in value
        )
    )


def _has_numbers(value: dict[str, Any], *names: str) -> bool:
    """Whether `value` has all of `names` as numbers within their bounds."""
    for name in names:
        number = value.get(name)
        if type(number) is not int or not 0 <= number < _MAX_VALUES.get(name, _MAX_VALUE):
            return False
    return True


_MIN_BOUND_BYTES = 256 << 20
"""Any file may unpack to this size."""
_MAX_RATIO = 100
"""Larger files may unpack to this multiple of their size: snapshots compress to a tenth or a thirtieth."""
_PIECE_BYTES = 1 << 20
"""Bytes unpacked at a time."""


def join_bounded(parts: Iterable[bytes], packed: int, name: str) -> bytes:
    """Join `parts`, unpacked from `packed` bytes of the file `name`.

    Raises:
        UnreadableInput: they are far more than a snapshot could be.
    """
    max_bytes, length, pieces = max(_MIN_BOUND_BYTES, _MAX_RATIO * packed), 0, []
    for part in parts:
        length += len(part)
        if length > max_bytes:
            raise UnreadableInput(
                f"{name} is not a snapshot: its {packed} bytes unpack to more than {max_bytes >> 20} MiB"
            )
        pieces.append(part)
    return b"".join(pieces)


def gunzip(data: bytes, name: str) -> bytes:
    """Unpack the gzip file `data`.

    Raises:
        UnreadableInput: it is damaged, or unpacks to too much.
    """
    try:
        return join_bounded(_members(data), len(data), name)
    except (EOFError, zlib.error) as error:
        raise UnreadableInput(f"{name} is compressed and damaged: {error}") from None


def _members(data: bytes) -> Iterator[bytes]:
    while data:
        machine = zlib.decompressobj(wbits=31)
        while not machine.eof:
            part = machine.decompress(data, _PIECE_BYTES)
            data = machine.unconsumed_tail
            if part:
                yield part
            elif not machine.eof:
                raise EOFError("it ends in the middle")
        data = machine.unused_data.lstrip(b"\0")
