"""``[memory]`` events of a profile as a `MemoryRun`: what was asked for while it was recorded, and by whom.

Each event has the address, the bytes of the block (with its rounding; negative when it is given back) and
what is allocated and reserved after it. How blocks and segments lay when the profile began is in none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gapless.analyze.profile.lines import Place as Around
from gapless.analyze.profile.lines import Places, enclosing
from gapless.analyze.profile.marks import find_marks
from gapless.errors import UnreadableInput
from gapless.model.memory import ALLOC, FREE, STEP, Kind, MemoryRun, Place, Recorded, StartBlock, StartSegment
from gapless.model.memory_calls import CallTimes, DriverCalls
from gapless.model.source import SourceLine
from gapless.model.wording import size
from gapless.trace.timeline import Bools, HostKind, Memory, Timeline, distinct

_CPU = 0
_SCALAR = 16
"""Allocations of the CPU up to this size are numbers that a GPU would not be asked for."""
_ENOUGH = 10
"""Fewer calls of a kind than this are not measured by."""
_TAKES = frozenset(("cudaMalloc", "hipMalloc"))
_GIVES = frozenset(("cudaFree", "hipFree"))
_MAPS = frozenset(("cuMemMap", "hipMemMap"))
_UNMAPS = frozenset(("cuMemUnmap", "hipMemUnmap"))
_CALLS = _TAKES | _GIVES | _MAPS | _UNMAPS


def memory_runs(timeline: Timeline) -> tuple[MemoryRun, ...]:
    """One run for each device that has memory events; of a profile without a GPU, one of the CPU's tensors.

    Raises:
        UnreadableInput: there are no such events, or they tell too little.
    """
    name = timeline.facts.path or "this profile"
    memory = timeline.memory
    if not len(memory):
        raise UnreadableInput(
            f"{name} is a profile without [memory] events: record it with profile_memory=True, or take a "
            "snapshot with torch.cuda.memory._record_memory_history()"
        )
    foreign = (memory.device_type != _CPU) & (memory.device >= 0)
    if not foreign.any():
        if (memory.address < 0).any():
            raise UnreadableInput(f"{name} has [memory] events of the CPU only, and these have no addresses")
        return (_of_cpu(timeline),)
    _complete(memory, foreign, name)
    devices = distinct(memory.device[foreign]).tolist()
    return tuple(_of_gpu(timeline, int(one), len(devices) == 1) for one in devices)


def _complete(memory: Memory, rows: Bools, name: str) -> None:
    """What profiles of torch up to 1.11 lack."""
    lacking = (memory.address < 0) | (memory.allocated < 0) | (memory.reserved < 0)
    if not (rows & lacking).any():
        return
    rises = np.concatenate(([0], np.cumsum(memory.bytes[rows])))
    least = int(rises.max() - rises.min())
    raise UnreadableInput(
        f"{name} has [memory] events without addresses and totals, as written by torch before 1.12: they "
        f"only show that at least {size(least)} were allocated at once"
    )


def _of_gpu(timeline: Timeline, device: int, alone: bool) -> MemoryRun:
    memory = timeline.memory
    rows = (memory.device_type != _CPU) & (memory.device == device)
    # Memory goes by the process's numbers and device work by the machine's.
    gpus = timeline.facts.gpus
    gpu = next((one for one in gpus if one.number == device), None)
    if gpu is None and alone and gpus:
        gpu = gpus[0]
    columns = _Columns(timeline, memory.take(rows))
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


def _of_cpu(timeline: Timeline) -> MemoryRun:
    """The CPU's tensors, as if a GPU's allocator were asked for them."""
    memory = timeline.memory
    columns = _Columns(timeline, memory.take(np.abs(memory.bytes) > _SCALAR), totals=False)
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


class _Columns:
    """The rows of one device as columns of a `MemoryRun`."""

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
        """The columns by their names."""
        names = ("action", "ident", "size", "place", "time", "address", "allocated", "reserved")
        found: dict[str, Any] = {name: tuple(column) for name, column in zip(names, self._rows, strict=True)}
        if not self._totals:
            found |= {"allocated": (), "reserved": ()}
        found["stream"] = (0,) * len(self._rows[0])
        found["places"], found["lines"] = tuple(self._places), tuple(self._lines)
        return found

    def start(self) -> tuple[StartSegment, ...]:
        """What was in use before, each block in a segment of its own: how it lay is not known.

        What was given back while the profile ran is known by its size; the rest is one piece, which stays.
        """
        sizes = self._early
        rest = self._before() - sum(held for _, held in sizes)
        if self._totals and rest > 0:
            sizes = [*sizes, (self._count, rest)]
        found, address = [], 1 << 40
        for ident, held in sizes:
            block = StartBlock(size=held, ident=ident, requested=held)
            found.append(StartSegment(address=address, size=held, small=held <= 1 << 20, blocks=(block,)))
            address += -(-held // (2 << 20)) * (2 << 20)
        return tuple(found)

    def recorded(self) -> Recorded:
        """What the profile saw of the driver: steps of the reserved memory."""
        reserved = self._memory.reserved
        change = np.diff(reserved)
        return Recorded(
            mallocs=int((change > 0).sum()),
            frees=int((change < 0).sum()),
            peak_reserved=int(reserved.max()),
            final_reserved=int(reserved[-1]),
            floor=int(reserved.max()),
        )

    def _before(self) -> int:
        """Bytes allocated before the first row."""
        return int(self._memory.allocated[0] - self._memory.bytes[0]) if len(self._memory) else 0

    def _read(self) -> None:
        memory, ends = self._memory, self._ends()
        columns = (memory.time, memory.address, memory.bytes, memory.allocated, memory.reserved)
        places = self._where()
        mark = 0
        for time, address, held, allocated, reserved, place in zip(
            *(column.tolist() for column in columns), places, strict=True
        ):
            while mark < len(ends) and ends[mark] <= time:
                self._row(STEP, -1, 0, -1, ends[mark], 0, allocated - held, self._last(reserved))
                mark += 1
            self._one(address, held, place, (time, allocated, reserved))
        for end in ends[mark:]:
            self._row(STEP, -1, 0, -1, end, 0, self._last(0, 6), self._last(0))

    def _one(self, address: int, held: int, place: int, after: tuple[int, int, int]) -> None:
        if held > 0:
            if address in self._live:  # its end was lost
                self._row(FREE, self._live.pop(address)[0], 0, -1, after[0], 0, *after[1:])
            self._live[address] = (self._count, held)
            self._row(ALLOC, self._count, held, place, after[0], address, *after[1:])
            self._count += 1
            return
        ident = self._live.pop(address, (-1, 0))[0]
        if ident < 0:
            if address in self._gone:
                return  # given back twice: its beginning was lost
            ident, self._count = self._count, self._count + 1
            self._early.append((ident, -held))
        self._gone.add(address)
        self._row(FREE, ident, 0, -1, after[0], 0, *after[1:])

    def _row(self, *values: int) -> None:
        for column, value in zip(self._rows, values, strict=True):
            column.append(value)

    def _last(self, otherwise: int, column: int = 7) -> int:
        return self._rows[column][-1] if self._rows[column] else otherwise

    def _ends(self) -> list[int]:
        """When steps end, on the host; nothing where nothing marks them."""
        timeline = self._timeline
        rows = np.flatnonzero(timeline.launchers >= 0)
        launched = np.sort(timeline.host.start[timeline.launchers[rows]])
        marks = find_marks(timeline, launched)
        if marks is None or len(marks.end) < 2:
            return []
        return [int(one) for one in marks.end.tolist()]

    def _where(self) -> list[int]:
        """The place of each row."""
        timeline, memory = self._timeline, self._memory
        rows = enclosing(timeline, memory.thread.astype(np.int64), memory.time)
        codes, around = Places(timeline).of(rows)
        numbers = [self._place(one) for one in around]
        return [numbers[code] for code in codes.tolist()]

    def _place(self, around: Around) -> int:
        lines = tuple(self._lines.setdefault(line, len(self._lines)) for line in around.stack)
        operator = around.node or around.outermost
        return self._places.setdefault(Place(lines, operator, _kind(around)), len(self._places))


def _kind(around: Around) -> Kind:
    """What is asked for there: as much as the names around it show."""
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
    return "activation" if "_call_impl" in called or "nn.Module" in around.described else "unknown"


def _driver_calls(timeline: Timeline) -> tuple[DriverCalls, ...]:
    """Calls that take memory of the driver or give it back, by name."""
    host = timeline.host
    found = []
    for number in timeline.named(*sorted(_CALLS)).tolist():
        rows = (host.kind == HostKind.CALL) & (host.name == number)
        if rows.any():
            taken = int((host.end[rows] - host.start[rows]).sum())
            found.append(DriverCalls(name=timeline.names[number], count=int(rows.sum()), time=taken))
    return tuple(found)


def _call_times(calls: Iterable[DriverCalls]) -> CallTimes:
    """The mean of the calls that the profile has, where there are enough of them."""
    typical = CallTimes()
    malloc, free = _mean(calls, _TAKES), _mean(calls, _GIVES)
    if malloc < 0:
        return typical
    return CallTimes(malloc=malloc, free=free if free >= 0 else typical.free, source="measured")


def _mean(calls: Iterable[DriverCalls], names: frozenset[str]) -> int:
    mine = [one for one in calls if one.name in names]
    number = sum(one.count for one in mine)
    return sum(one.time for one in mine) // number if number >= _ENOUGH else -1
