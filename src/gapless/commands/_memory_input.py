"""What ``gapless memory`` is given: files of several kinds, GPUs, sizes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import msgspec

from gapless.errors import UnreadableInput, UsageError
from gapless.model.memory import CONTEXT, MemoryRun, check

if TYPE_CHECKING:
    from gapless.memory.trials import Where

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_PREFIXES = " kmgt"
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_ZSTD = _PACKED[1]
_HEAD = 1 << 20
"""Bytes at the beginning of a file by which a profile is told from a snapshot."""
_PROFILE = (b'"traceEvents"', b'"schemaVersion"', b'"ph"')


def read(path: str) -> tuple[MemoryRun, ...]:
    """The runs in the file `path`: a snapshot, a profile with ``[memory]`` events, or what Gapless saved.

    Raises:
        UnreadableInput: it is none of these.
    """
    from gapless.commands._saved import kind_of
    from gapless.memory.snapshot import of_bytes
    from gapless.memory.snapshot import read as read_snapshot
    from gapless.model.memory import load

    kind = kind_of(path)
    if kind == "memory":
        return load(path)
    if kind == "session":
        return _of_session(path)
    if kind and kind != "trace":
        raise UnreadableInput(f"{path} is a saved {kind} and contains no memory requests")
    head, packed = _beginning(path)
    if _is_profile(head):
        return _of_profile(path)
    return of_bytes(_unpacked(path), path) if packed == _ZSTD else read_snapshot(path)


def is_snapshot(path: str) -> bool:
    """Whether the file begins as a snapshot of memory does: a pickle, JSON of one, or the viewer's page."""
    head, _ = _beginning(path)
    if head.startswith(b"\x80"):
        return True
    return not _is_profile(head) and (b'"device_traces"' in head or b"MemoryViz" in head)


def _beginning(path: str) -> tuple[bytes, bytes]:
    """How the file begins, unpacked, and by what it is packed (b"": it is not)."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    packed = next((mark for mark in _PACKED if head.startswith(mark)), b"")
    if not packed:
        return head, b""
    from gapless.trace.sources import open_source

    with open_source(path) as source:
        return source.read(_HEAD), packed


def _is_profile(head: bytes) -> bool:
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    return text[:1] in (b"{", b"[") and any(mark in head for mark in _PROFILE)


def _unpacked(path: str) -> bytes:
    """The whole file, as long as it is no bomb."""
    from gapless.memory.unpack import gathered
    from gapless.trace.sources import open_source

    with open_source(path) as source:
        return gathered(iter(lambda: source.read(1 << 20), b""), os.path.getsize(path), path)


def _of_profile(path: str) -> tuple[MemoryRun, ...]:
    from gapless.analyze.memory_events import memory_runs
    from gapless.trace.read import read as read_trace

    return memory_runs(read_trace(path))


def _of_session(path: str) -> tuple[MemoryRun, ...]:
    """What `gapless check --memory` recorded."""
    from gapless.model.session import load

    session = load(path)
    if not session.memory:
        why = (
            "nothing was put on the device" if session.environment.unused else "it was saved without --memory"
        )
        raise UnreadableInput(f"{path} contains no memory requests: {why}")
    for run in session.memory:
        problem = check(run)
        if problem:
            raise UnreadableInput(f"{path} is a damaged session: {problem} in its memory record")
    return tuple(msgspec.structs.replace(run, path=path) for run in session.memory)


def choose(runs: tuple[MemoryRun, ...], device: int | None, where: Where) -> MemoryRun:
    """The run of `device`; else one that failed, or fails under the limit in `where`; else the busiest.

    Raises:
        UsageError: nothing was recorded of `device`.
    """
    if not runs:
        raise UnreadableInput("the file contains no run: save it again")
    if device is None:
        from gapless.memory.devices import first

        return first(runs, where)
    for run in runs:
        if run.device == device:
            return run
    known = ", ".join(str(run.device) for run in runs)
    raise UsageError(f"nothing was recorded for device {device}: there is {known}")


def room(gpu: str | None, limit: str | None) -> tuple[str, int, int]:
    """The device's name, what the process may reserve of it, and what it has; -1 where nothing is said."""
    name, capacity, total = "", -1, -1
    if gpu is not None:
        from gapless.model.gpus import find_card

        found = find_card(gpu)
        name, capacity, total = found.name, found.total_memory - CONTEXT, found.total_memory
    if limit is not None:
        capacity = parse_size(limit)
        total = max(total, capacity)
    return name, capacity, total


def parse_size(text: str) -> int:
    """Bytes: ``24GiB``, ``24G`` (the same), ``22.5GB`` (powers of 1000), ``1000000``.

    Raises:
        UsageError: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a size: write 24GiB, 22.5GB or a number of bytes")
    number, unit = float(found.group(1)), found.group(2).lower()
    decimal = len(unit) == 2 and unit.endswith("b")
    power = _PREFIXES.index(unit[0]) if unit not in ("", "b") else 0
    return int(number * (1000 if decimal else 1024) ** power)
