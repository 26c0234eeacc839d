"""`Profile`: the summary of one trace, small enough to send, to save and to merge with those of other
ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gapless.model._disk import SavedFormat
from gapless.model._sound import MAX_NUMBER
from gapless.model.copies import Memory
from gapless.model.coverage import Coverage
from gapless.model.efficiency import Efficiency
from gapless.model.event import Site
from gapless.model.lanes import Lanes
from gapless.model.ranges import Range

Cause = Literal[
    "wait",
    "input",
    "launch",
    "host",
    "allocator",
    "communication",
    "graph",
    "profiler",
    "unknown",
]
"""Why a device is idle.

- ``wait``: the host waited for the device, and nothing else was queued;
- ``input``: the next batch was not ready;
- ``launch``: the host launches as fast as it can, but kernels are shorter than their launches;
- ``host``: the host did something else (Python, operators on the CPU) and launched nothing;
- ``allocator``: the allocator got memory from the driver or returned it;
- ``communication``: only collectives ran, or ranks waited for one another;
- ``graph``: a graph launch, a compilation or another long driver call delayed the host;
- ``profiler``: the profiler itself;
- ``unknown``: nothing recorded explains it.
"""


class Split(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the time of the steps divides; each nanosecond counts once, for the first of these that applies."""

    kernel: int = 0
    memcpy: int = 0
    memset: int = 0
    communication: int = 0
    runtime: int = 0
    loading: int = 0
    host: int = 0
    other: int = 0


class Steps(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The steps of a trace, in nanoseconds since its first event.

    `source` is what marks them (``ProfilerStep``, ``Optimizer.step#SGD.step``); ``span`` if nothing does and
    the whole trace counts as one. `busy` is the time in each step during which the device computes or copies
    (communication alone does not count).
    """

    source: str = "span"
    names: tuple[str, ...] = ()
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    busy: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """The total length of all steps."""
        return sum(self.end) - sum(self.start)

    @property
    def mean(self) -> float:
        """The mean nanoseconds per step."""
        return self.total / self.count if self.count else 0.0


class PhaseTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One phase of training, in nanoseconds: the host's time, that of the device work it launched, and
    idle time."""

    name: Literal["loading", "transfer", "forward", "backward", "optimizer", "other"]
    host: int = 0
    device: int = 0
    idle: int = 0


class KernelTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All launches of one kernel within the steps.

    `operator` launched most of them. `blocks_per_sm` and `occupancy` (percent) are means weighted by time, -1
    if unknown.
    """

    name: str
    calls: int
    total: int
    operator: str = ""
    communication: bool = False
    blocks_per_sm: float = -1.0
    occupancy: float = -1.0


class LineTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Device time launched from one place."""

    site: Site
    total: int
    kernels: int


class CopyTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The copies between host and device in one direction and with one kind of host memory, within the steps.

    `time` is their total length (ns), `alone` the time in which only they ran: no kernels, and no copies of
    entries that precede this one in `Profile.copies`. `reach` is the rate of copies with pinned memory in
    that direction (GB/s; 0.0: unknown): `measured` in this profile, otherwise from the GPU's generation of
    PCIe.
    """

    to_device: bool
    memory: Memory
    count: int
    bytes: int
    time: int
    alone: int = 0
    reach: float = 0.0
    measured: bool = False

    @property
    def rate(self) -> float:
        """The mean rate in GB/s."""
        return self.bytes / self.time if self.time else 0.0


class Launches(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the host feeds the device.

    `count` device operations in the steps, `short` of them shorter than the call that launched them. `depth`
    is the mean number of operations launched but not begun, `empty` the share of the steps' time without any.
    Medians in nanoseconds: `delay` from launch to start, `call` of a launching call, `kernel` of a kernel.
    `graphs` counts graph launches.
    """

    count: int = 0
    short: int = 0
    depth: float = 0.0
    empty: float = 0.0
    delay: int = 0
    call: int = 0
    kernel: int = 0
    graphs: int = 0


class MemoryUse(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Memory of the device over time, if recorded; bytes.

    `time`, `allocated` and `reserved` are a thinned curve that keeps the peaks. `drops` counts how often
    reserved memory fell within the steps; `given_back` and `taken_again` are the bytes.
    """

    peak_allocated: int = -1
    peak_reserved: int = -1
    drops: int = 0
    given_back: int = 0
    taken_again: int = 0
    time: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()


class Cost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Idle time of the device with one cause at one place, and the host's share in it. Only steps count.

    - `idle`: nanoseconds of the device, in `stretches` intervals.
    - `launching`: the part of `idle` in which the host ran operators that compute nothing on the CPU: they
      launch device work, or return views.
    - `calls`: calls that block the host, for `blocked` nanoseconds; in `working` of these the device was
      busy.
    - `place`: the place in words, for profiles without lines: ``aten::index in forward``.
    - `steps`: in how many steps any of it happens.
    - `start`, `end`: the longest interval (without idle time the longest call): where to look in a viewer.
    """

    cause: Cause
    site: Site
    place: str = ""
    idle: int = 0
    launching: int = 0
    stretches: int = 0
    calls: int = 0
    blocked: int = 0
    working: int = 0
    bytes: int = 0
    steps: int = 0
    start: int = 0
    end: int = 0


class Price(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a group of waits costs, from replays of the profile without them; nanoseconds of its whole span.

    - `costs`: positions in `Profile.costs`.
    - `alone`: the saving if nothing else changes; `last`: if all other priced waits are removed already.
    - `least_alone`, `least_last`: the same if the peers of collectives do not become faster.
    - `blocked`: the host's time in them; `waits`: how many are removed; `kept`: how many cannot be.
    - `removal`: ``free`` (a pinned copy, a needless synchronization), ``deferrable`` (the value can be read
      later) or ``shape`` (the host needs the value to go on: only another computation removes the wait).
    - `unknown`: the profile does not show what is waited for; all amounts are -1.
    - `launches`: kernels and copies per step that the remedy removes with the waits; with 0 the amounts are
      of the waits alone.
    - `estimated`: of one training step on an emulated GPU; then `least_alone` to `most_last` are the range
      that the assumptions allow: at least the CPU launches what it did, at most nothing of what may go.
    - `of`: the step's length, if it is not the estimate's.
    - `at_most`: of needless work: the step becomes so much shorter only if the GPU's time limits it.

    Prices are never added up: one wait can take over the time of another. See docs/price.md.
    """

    costs: tuple[int, ...] = ()
    alone: int = 0
    last: int = 0
    least_alone: int = 0
    least_last: int = 0
    blocked: int = 0
    waits: int = 0
    kept: int = 0
    removal: Literal["free", "deferrable", "shape"] = "shape"
    estimated: bool = False
    most_alone: int = 0
    most_last: int = 0
    of: int = 0
    at_most: bool = False
    unknown: bool = False
    launches: float = 0.0

    @classmethod
    def estimate(cls, alone: Range, last: Range | None = None, **fields: Any) -> Price:
        """Return an estimated price of these ranges, with other `fields`; `last` is `alone` by default.

        >>> Price.estimate(Range(least=2, likely=5, most=9), of=100).least_alone
        2
        """
        last = alone if last is None else last
        return cls(
            alone=alone.likely,
            last=last.likely,
            least_alone=alone.least,
            least_last=last.least,
            most_alone=alone.most,
            most_last=last.most,
            estimated=True,
            **fields,
        )


class Asked(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the user asked to remove, and what it saves (`least`: see `Price`).

    `what` was removed, `waits` waits in all; `assumed` are other changes (``pinned`` copies, ``input`` always
    ready, launches in ``graphs``, ``half:KERNEL``: half the time of a kernel).
    """

    what: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    waits: int = 0
    saved: int = 0
    least: int = 0


class Prices(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What removing waits would save, in nanoseconds of the replayed `span`.

    - `all`: the saving from removing every priced wait (`least_all`: see `Price`).
    - `each`: the prices; `shortest`: positions of the few that save nine tenths of `all`, in order; `saved`:
      the saving after each of these.
    - `asked`: what the user asked to remove.
    - `limiter`: what takes most of the time (``host``, ``device``, ``copies``, ``input``, ``peers``);
      `remains`: what does without all the waits.
    - `pinned`: the saving from pinned memory in all copies, without waits in those to the device;
      `pinned_to_device`: in the latter only.
    - `reasons`: why the prices are only bounds: the unchanged replay differs too much from the profile.
    - `refused`: why there are no prices.
    - `span_error`, `drift`, `explained`, `wait_error`: the replay's fidelity (docs/price.md).
    """

    span: int = 0
    all: int = 0
    least_all: int = 0
    each: tuple[Price, ...] = ()
    shortest: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    asked: Asked | None = None
    limiter: str = ""
    remains: str = ""
    reasons: tuple[str, ...] = ()
    refused: str = ""
    span_error: float = 0.0
    drift: float = 0.0
    explained: float = 1.0
    wait_error: float = -1.0
    pinned: int = 0
    pinned_to_device: int = 0


SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that no rank can finish before all ranks arrive; a broadcast's root can."""


class Collectives(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The communication kernels of one process group and name, in order, to be matched between ranks.

    Nanoseconds since the first event of this rank's file; `elements` are -1 if not recorded.
    """

    name: str
    group: str = ""
    start: tuple[int, ...] = ()
    length: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()


class Recording(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the trace was recorded, and how much that distorts it.

    `stacks` is the source of line numbers: ``frames``, ``call-stack`` or "" (none). `overhead` is the
    profiler's own time in the steps. `by_gapless`: `gapless profile` chose the steps. `unrecorded` is the
    length of a step before the profiler started (ns); 0 if it was not measured.
    """

    stacks: Literal["frames", "call-stack", ""] = ""
    with_stack: bool = False
    with_memory: bool = False
    with_shapes: bool = False
    overhead: int = 0
    overheads: dict[str, int] = {}
    events_per_step: int = 0
    truncated: bool = False
    by_gapless: bool = False
    unrecorded: int = 0


MIN_SLOWDOWN = 0.01
"""Recorded steps that take no more than this share longer than others are as long."""


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The summary of one trace. Times are nanoseconds, totals over all steps.

    - `idle`: the time in the steps in which the device neither computes nor copies; the sum over `costs`.
    - `utilization`, `sm_efficiency` (0 to 1), `occupancy` (percent): as defined in docs/trace.md; -1:
      unknown.
    - `efficiency`: None without recorded shapes; `prices`, `lanes`: None if not requested.
    - `device`: the number of the analyzed GPU, the busiest of `devices`.
    - `launch`: equal for ranks that were launched together; "" if unknown.
    - `coverage`: how complete the recording is. If it is not, all this describes what was recorded, without
      prices.
    """

    path: str = ""
    origin: int = 0
    span: int = 0
    rank: int = -1
    world_size: int = 0
    launch: str = ""
    vendor: str = ""
    device: int = -1
    gpu: str = ""
    gpu_memory: int = 0
    devices: int = 0
    streams: int = 0
    steps: Steps = Steps()
    split: Split = Split()
    idle: int = 0
    utilization: float = -1.0
    sm_efficiency: float = -1.0
    occupancy: float = -1.0
    phases: tuple[PhaseTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    lines: tuple[LineTime, ...] = ()
    launches: Launches = Launches()
    copies: tuple[CopyTime, ...] = ()
    memory: MemoryUse = MemoryUse()
    costs: tuple[Cost, ...] = ()
    collectives: tuple[Collectives, ...] = ()
    recording: Recording = Recording()
    coverage: Coverage = Coverage()
    efficiency: Efficiency | None = None
    prices: Prices | None = None
    lanes: Lanes | None = None
    notes: tuple[str, ...] = ()

    @property
    def unrecorded_step(self) -> float:
        """The length of a step without the profiler, as far as known; nanoseconds."""
        recorded, without = self.steps.mean, self.recording.unrecorded
        slowed = self.steps.count > 1 and 0 < without < (1 - MIN_SLOWDOWN) * recorded
        return without if slowed else recorded

    @property
    def unrecorded_idle(self) -> float:
        """The idle time in all steps that is left without the profiler: the GPU's work takes as long."""
        added = (self.steps.mean - self.unrecorded_step) * self.steps.count
        return max(self.idle - added, 0.0)

    def idle_by_cause(self) -> list[tuple[Cause, int]]:
        """Return idle nanoseconds by cause, largest first."""
        sums: Counter[Cause] = Counter()
        for cost in self.costs:
            sums[cost.cause] += cost.idle
        return [(cause, idle) for cause, idle in sums.most_common() if idle]


def _checked_profile(profile: Profile) -> Profile:
    """Return `profile` after checking that columns are equally long and positions exist.

    Raises:
        ValueError: they are not.
    """
    steps, memory, prices, lanes = profile.steps, profile.memory, profile.prices, profile.lanes
    _check_equal_lengths(
        "steps", steps.start, steps.end, steps.busy or steps.start, steps.names or steps.start
    )
    _check_equal_lengths(
        "memory", memory.time, memory.allocated or memory.time, memory.reserved or memory.time
    )
    for kernels in profile.collectives:
        _check_equal_lengths("collectives", kernels.start, kernels.length, kernels.elements or kernels.start)
    if any(end < start for start, end in zip(steps.start, steps.end, strict=True)):
        raise ValueError("a step ends before it begins")
    if prices is not None:
        _check_positions("price", prices.shortest, len(prices.each))
        _check_equal_lengths("prices", prices.shortest, prices.saved)
        for price in prices.each:
            _check_positions("cost", price.costs, len(profile.costs))
    if lanes is not None:
        _check_lanes(lanes, len(profile.costs))
    return profile


def _check_lanes(lanes: Lanes, costs: int) -> None:
    for row in (row for window in lanes.windows for row in window.boxes):
        _check_equal_lengths("boxes", row.start, row.length, row.what, row.count, row.busy)
        _check_equal_lengths("boxes", row.start, row.launch or row.start, row.thread or row.start)
        _check_positions(
            "lane", (row.lane, *(thread for thread in row.thread if thread != -1)), len(lanes.lanes)
        )
        _check_positions(
            "name", row.what, costs if lanes.lanes[row.lane].kind == "waits" else len(lanes.names)
        )
    _check_equal_lengths("names of boxes", lanes.names, lanes.kinds)


def _check_equal_lengths(noun: str, *columns: Sequence[object]) -> None:
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of {noun} have different lengths")


def _check_positions(noun: str, positions: Sequence[int], count: int) -> None:
    if positions and not (min(positions) >= 0 and max(positions) < count):
        raise ValueError(f"a {noun} does not exist")


class _SavedProfiles(msgspec.Struct, omit_defaults=True, kw_only=True):
    format: str = ""
    version: int = 0
    profiles: tuple[Profile, ...] = ()


def _checked_profiles(document: _SavedProfiles) -> tuple[Profile, ...]:
    if not document.profiles:
        raise ValueError("there is no profile in it")
    return tuple(map(_checked_profile, document.profiles))


SAVED: SavedFormat[Sequence[Profile], tuple[Profile, ...]] = SavedFormat(
    "profile",
    "gapless-profile",
    1,
    _SavedProfiles,
    pack=lambda profiles: {"profiles": tuple(profiles)},
    unpack=_checked_profiles,
    least=-MAX_NUMBER,  # clocks of hosts and devices differ, so that what was first may be before it
)
"""The file format of the profiles of one run."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load
