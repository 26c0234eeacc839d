"""Read ``[memory]`` events of a profile as a `MemoryRun`: allocations while it was recorded, and by whom.

Each event has the address, the bytes of the block (rounded; negative if it is freed) and the allocated and
reserved totals after it. The layout of blocks and segments at the start of the profile is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gapless.analyze.profile.lines import HostPlace as Around
from gapless.analyze.profile.lines import PlaceIndex, enclosing_rows
from gapless.analyze.profile.marks import find_marks
from gapless.errors import UnreadableInput
from gapless.model.memory import ALLOC, FREE, STEP, Kind, MemoryRun, Place, Recorded, StartBlock, StartSegment
from gapless.model.memory_calls import CallTimes, DriverCalls
from gapless.model.source import SourceLine
from gapless.model.wording import size
from gapless.trace.timeline import Bools, HostKind, Memory, Timeline, distinct

_CPU = 0
"""The CPU in ``c10::DeviceType``."""
_MAX_SCALAR_BYTES = 16
"""CPU allocations up to this size hold single numbers, which would not be allocated on a GPU."""
_MIN_CALLS = 10
"""Calls of a kind needed for a meaningful mean time."""
_MALLOC_CALLS = frozenset(("cudaMalloc", "hipMalloc"))
_FREE_CALLS = frozenset(("cudaFree", "hipFree"))
_MAP_CALLS = frozenset(("cuMemMap", "hipMemMap"))
_UNMAP_CALLS = frozenset(("cuMemUnmap", "hipMemUnmap"))
_DRIVER_CALLS = _MALLOC_CALLS | _FREE_CALLS | _MAP_CALLS | _UNMAP_CALLS


def read_memory_runs(timeline: Timeline) -> tuple[MemoryRun, ...]:
    """Return a run for each device with memory events; for a profile without a GPU, one of its CPU tensors.

    Raises:
        UnreadableInput: there are no such events, or they lack addresses or totals.
    """
    name = timeline.facts.path or "this profile"
    memory = timeline.memory
    if not len(memory):
        raise UnreadableInput(
            f"{name} is a profile without [memory] events: record it with profile_memory=True, or take a "
            "snapshot with torch.cuda.memory._record_memory_history()"
        )
    on_gpu = (memory.device_type != _CPU) & (memory.device >= 0)
    if not on_gpu.any():
        if (memory.address < 0).any():
            raise UnreadableInput(f"{name} has [memory] events of the CPU only, and these have no addresses")
        return (_cpu_run(timeline),)
    _require_complete(memory, on_gpu, name)
    devices = distinct(memory.device[on_gpu]).tolist()
    return tuple(_gpu_run(timeline, int(device), len(devices) == 1) for device in devices)


def _require_complete(memory: Memory, rows: Bools, name: str) -> None:
    """Raise if events lack addresses or totals, as in profiles of torch up to 1.11."""
    is_incomplete = (memory.address < 0) | (memory.allocated < 0) | (memory.reserved < 0)
    if not (rows & is_incomplete).any():
        return
    rises = np.concatenate(([0], np.cumsum(memory.bytes[rows])))
    least = int(rises.max() - rises.min())
    raise UnreadableInput(
        f"{name} has [memory] events without addresses and totals, as written by torch before 1.12: they "
        f"only show that at least {size(least)} were allocated at once"
    )


def _gpu_run(timeline: Timeline, device: int, alone: bool) -> MemoryRun:
    memory = timeline.memory
    rows = (memory.device_type != _CPU) & (memory.device == device)
    # Memory events use the process's device numbers, device work the machine's.
    gpus = timeline.facts.gpus
    gpu = next((candidate for candidate in gpus if candidate.number == device), None)
    if gpu is None and alone and gpus:
        gpu = gpus[0]
    columns = _EventColumns(timeline, memory.take(rows))
    calls = _driver_calls(timeline)
    return MemoryRun(
        **columns.fields(),
        origin="profile",
        path=timeline.facts.path,
        device=device,
        gpu=gpu.name if gpu else "",
        total_memory=gpu.memory if gpu and gpu.memory > 0 else -1,
        start=columns.start(),
        recorded=columns.recorded(),
        times=_call_times(calls),
        calls=calls,
        notes=(
            "a profile records blocks including rounding (up to 1 MiB more than requested) and nothing "
            "about record_stream, private pools or settings: PyTorch's defaults are assumed",
            *timeline.notes,
        ),
    )


def _cpu_run(timeline: Timeline) -> MemoryRun:
    """Return the CPU's tensors as if they were allocated on a GPU."""
    memory = timeline.memory
    columns = _EventColumns(timeline, memory.take(np.abs(memory.bytes) > _MAX_SCALAR_BYTES), totals=False)
    return MemoryRun(
        **columns.fields(),
        origin="profile",
        path=timeline.facts.path,
        start=columns.start(),
        notes=(
            "a CPU profile: its tensors are replayed as if they were on a GPU; autocast casts and "
            "workspaces are the CPU's (gapless check --memory uses CUDA's)",
            *timeline.notes,
        ),
    )


class _EventColumns:
    """The memory events of one device as columns of a `MemoryRun`."""

    def __init__(self, timeline: Timeline, memory: Memory, totals: bool = True) -> None:
        self._timeline = timeline
        self._memory = memory
        self._totals = totals
        self._lines: dict[SourceLine, int] = {}
        self._places: dict[Place, int] = {}
        self._rows: tuple[list[int], ...] = tuple([] for _ in range(8))
        self._early: list[tuple[int, int]] = []
        self._live: dict[int, tuple[int, int]] = {}
        self._gone: set[int] = set()
        self._count = 0
        self._read()

    def fields(self) -> dict[str, Any]:
        """Return the columns by their names."""
        names = ("action", "ident", "size", "place", "time", "address", "allocated", "reserved")
        columns: dict[str, Any] = {
            name: tuple(column) for name, column in zip(names, self._rows, strict=True)
        }
        if not self._totals:
            columns |= {"allocated": (), "reserved": ()}
        columns["stream"] = (0,) * len(self._rows[0])
        columns["places"], columns["lines"] = tuple(self._places), tuple(self._lines)
        return columns

    def start(self) -> tuple[StartSegment, ...]:
        """Return the blocks in use before the profile, each in its own segment, as the layout is unknown.

        Blocks freed during the profile are known by size; the rest is a single block that stays.
        """
        sizes = self._early
        rest = self._bytes_before() - sum(held for _, held in sizes)
        if self._totals and rest > 0:
            sizes = [*sizes, (self._count, rest)]
        segments, address = [], 1 << 40
        for ident, held in sizes:
            block = StartBlock(size=held, ident=ident, requested=held)
            segments.append(StartSegment(address=address, size=held, small=held <= 1 << 20, blocks=(block,)))
            address += -(-held // (2 << 20)) * (2 << 20)
        return tuple(segments)

    def recorded(self) -> Recorded:
        """Count what the profile shows of the driver: changes of the reserved memory."""
        reserved = self._memory.reserved
        change = np.diff(reserved)
        return Recorded(
            mallocs=int((change > 0).sum()),
            frees=int((change < 0).sum()),
            peak_reserved=int(reserved.max()),
            final_reserved=int(reserved[-1]),
            floor=int(reserved.max()),
        )

    def _bytes_before(self) -> int:
        """Bytes allocated before the first row."""
        return int(self._memory.allocated[0] - self._memory.bytes[0]) if len(self._memory) else 0

    def _read(self) -> None:
        memory, ends = self._memory, self._step_ends()
        columns = (memory.time, memory.address, memory.bytes, memory.allocated, memory.reserved)
        places = self._places_of_rows()
        mark = 0
        for time, address, held, allocated, reserved, place in zip(
            *(column.tolist() for column in columns), places, strict=True
        ):
            while mark < len(ends) and ends[mark] <= time:
                self._append(STEP, -1, 0, -1, ends[mark], 0, allocated - held, self._last_value(reserved))
                mark += 1
            self._add_event(address, held, place, (time, allocated, reserved))
        for end in ends[mark:]:
            self._append(STEP, -1, 0, -1, end, 0, self._last_value(0, 6), self._last_value(0))

    def _add_event(self, address: int, held: int, place: int, after: tuple[int, int, int]) -> None:
        if held > 0:
            if address in self._live:  # the event that freed it was lost
                self._append(FREE, self._live.pop(address)[0], 0, -1, after[0], 0, *after[1:])
            self._live[address] = (self._count, held)
            self._append(ALLOC, self._count, held, place, after[0], address, *after[1:])
            self._count += 1
            return
        ident = self._live.pop(address, (-1, 0))[0]
        if ident < 0:
            if address in self._gone:
                return  # freed twice: the allocation in between was lost
            ident, self._count = self._count, self._count + 1
            self._early.append((ident, -held))
        self._gone.add(address)
        self._append(FREE, ident, 0, -1, after[0], 0, *after[1:])

    def _append(self, *values: int) -> None:
        for column, value in zip(self._rows, values, strict=True):
            column.append(value)

    def _last_value(self, default: int, column: int = 7) -> int:
        return self._rows[column][-1] if self._rows[column] else default

    def _step_ends(self) -> list[int]:
        """Return when steps end, on the host; empty if nothing marks them."""
        timeline = self._timeline
        rows = np.flatnonzero(timeline.launchers >= 0)
        launched = np.sort(timeline.host.start[timeline.launchers[rows]])
        marks = find_marks(timeline, launched)
        if marks is None or len(marks.end) < 2:
            return []
        return [int(end) for end in marks.end.tolist()]

    def _places_of_rows(self) -> list[int]:
        """Return the place of each row."""
        timeline, memory = self._timeline, self._memory
        rows = enclosing_rows(timeline, memory.thread.astype(np.int64), memory.time)
        codes, around = PlaceIndex(timeline).of(rows)
        numbers = [self._place_number(place) for place in around]
        return [numbers[code] for code in codes.tolist()]

    def _place_number(self, around: Around) -> int:
        lines = tuple(self._lines.setdefault(line, len(self._lines)) for line in around.stack)
        operator = around.node or around.outermost
        return self._places.setdefault(Place(lines, operator, _kind_of(around)), len(self._places))


def _kind_of(around: Around) -> Kind:
    """Return for what memory is allocated, as far as the names around it show."""
    if any(name.startswith("Optimizer.step") for name in (*around.annotations, *around.operators)):
        return "optimizer"
    files = [line.file.replace("\\", "/") for line in around.stack]
    if any("torch/optim/" in file for file in files):
        return "optimizer"
    if around.node:
        return "backward"
    if any("DataLoader" in name for name in around.annotations) or any(
        "torch/utils/data/" in file for file in files
    ):
        return "batch"
    called = [
        line.function
        for line, file in zip(around.stack, files, strict=True)
        if file.endswith("/modules/module.py")
    ]
    if any(function in ("_apply", "to", "cuda", "convert") for function in called):
        return "parameter"
    return "activation" if "_call_impl" in called or "nn.Module" in around.description else "unknown"


def _driver_calls(timeline: Timeline) -> tuple[DriverCalls, ...]:
    """Count the calls that take memory from the driver or give it back, by name."""
    host = timeline.host
    calls = []
    for number in timeline.positions_of_names(*sorted(_DRIVER_CALLS)).tolist():
        rows = (host.kind == HostKind.CALL) & (host.name == number)
        if rows.any():
            taken = int((host.end[rows] - host.start[rows]).sum())
            calls.append(DriverCalls(name=timeline.names[number], count=int(rows.sum()), time=taken))
    return tuple(calls)


def _call_times(calls: Iterable[DriverCalls]) -> CallTimes:
    """Return the mean time of the profile's calls, or typical times if there are too few."""
    typical = CallTimes()
    malloc, free = _mean_time(calls, _MALLOC_CALLS), _mean_time(calls, _FREE_CALLS)
    if malloc < 0:
        return typical
    return CallTimes(malloc=malloc, free=free if free >= 0 else typical.free, source="measured")


def _mean_time(calls: Iterable[DriverCalls], names: frozenset[str]) -> int:
    mine = [call for call in calls if call.name in names]
    number = sum(call.count for call in mine)
    return sum(call.time for call in mine) // number if number >= _MIN_CALLS else -1
