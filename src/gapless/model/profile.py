"""`Profile`: the summary of one trace, small enough to send, to save and to merge with other ranks'."""

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
"""Why a device has nothing to do.

- ``wait``: the host waited for the device, and nothing was queued behind what it waited for;
- ``input``: the next batch was not there;
- ``launch``: the host launches as fast as it can, and the kernels are shorter than their launches;
- ``host``: the host did something else (Python, operators on the CPU) and launched nothing;
- ``allocator``: memory was taken from the driver or given back to it;
- ``communication``: only collectives ran, or their peers were waited for;
- ``graph``: a graph launch, a compilation or another long call of the driver held the host up;
- ``profiler``: the profiler itself;
- ``unknown``: nothing recorded explains it.
"""


class Split(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the time of the steps goes, each nanosecond counted once, by the first of these that applies."""

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

    `source` says what marks them (``ProfilerStep``, ``Optimizer.step#SGD.step``) or ``span`` where
    nothing does and the whole trace counts as one. `busy` is the time in each step during which the device
    computes or copies (communication alone does not count).
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
    """One phase of training: time on the host, time of the device work launched in it, and idleness there."""

    name: Literal["loading", "transfer", "forward", "backward", "optimizer", "other"]
    host: int = 0
    device: int = 0
    idle: int = 0


class KernelTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All launches of one kernel within the steps.

    `operator` is the operator that launched most of them. `blocks_per_sm` and `occupancy` (percent) are
    means weighted by time, -1 where unknown.
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
    """The copies between host and device in one direction, from or to one kind of memory, within the steps.

    `time` is how long they took (ns, all together), `alone` how much of the steps none but copies like them
    ran: neither kernels nor what stands before them in `Profile.copies`. `reach` is what copies from and to
    pinned memory reach in that direction (GB/s, 0.0 where that is not known), `measured` whether copies of
    this profile show it; else it follows from the GPU's generation of PCIe.
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

    `count` device operations in the steps, `short` of them shorter than the call that launched them.
    `depth` is the mean number of operations that were launched and had not begun, `empty` the share of the
    steps' time in which there were none. `delay` is the median from the launch to the start, `call` the
    median length of a launching call, `kernel` of a kernel; nanoseconds. `graphs` counts graph launches.
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
    """Memory of the device over time, where it was recorded; bytes.

    `time`, `allocated` and `reserved` are a thinned curve that keeps the peaks. `drops` counts how often the
    reserved memory fell within the steps, `given_back` and `taken_again` the bytes.
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
    """Idleness of the device that has one cause at one place, and the host's share in it.

    `idle` nanoseconds of the device in `stretches` stretches of the steps, `launching` of it while the host
    was busy in operators that compute nothing on the CPU: they launch work for the device themselves, or
    only give views. For calls: `calls` of them, in which the host spent `blocked`, `working` of it while the
    device computed or copied. `place` tells in words where it is (``aten::index in forward``), for profiles
    that know no lines. `steps` says in how many steps either happens. `start` and `end` are the longest
    stretch (or, where there is no idleness, the longest call): where to look in a viewer. Outside the steps
    nothing counts.
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
    """What a group of waits costs, by replaying the profile without it: nanoseconds of its whole span.

    `costs` are positions in `Profile.costs`. `alone` is saved when nothing else changes, `last` when all
    other priced waits are gone already; `least_alone` and `least_last` where the peers of collectives do not
    come earlier as well. Prices are never added up: waits stand in for one another. `blocked` is the host's
    time in them, `waits` how many are removed, `kept` how many cannot be. `removal` says how they can go:
    ``free`` (a pinned copy, a synchronization left out), ``deferrable`` (a value that can be read later) or
    ``shape`` (the host needs the value to go on: only another way to compute it removes the wait).
    docs/price.md explains.

    An `unknown` price is of waits for something that the profile does not show: every amount is -1 then.

    An `estimated` price is of one training step on a GPU that is not there; `least_alone` to `most_last` then
    span what its assumptions allow. Where the step is another than the estimate's, `of` is its length. One
    that is `at_most` is of work that nobody needs: the step is so much shorter if the GPU's time follows it.
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
    """What the user asked for, and what it saves (`least`: see `Price`).

    `what` was left out, which is so many `waits`; `assumed` are changes of another kind (``pinned`` copies,
    an ``input`` that is always there, launches in ``graphs``, ``half:KERNEL`` the time of a kernel).
    """

    what: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    waits: int = 0
    saved: int = 0
    least: int = 0


class Prices(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What removing waits would save, in nanoseconds of the replayed `span`.

    `all` is what removing every priced wait saves together. `shortest` are positions in `each`: few groups
    that save nine tenths of that, in order, and `saved` is what has been saved after each. `limiter` is what
    takes most of the time (``host``, ``device``, ``copies``, ``input``, ``peers``), `remains` what does
    without all the waits. `pinned` is what copies from and to pinned memory would save, those to the device
    without waiting; `pinned_to_device` what the latter alone would. `reasons` say where the unchanged replay
    is too far from the profile: the prices are bounds then. `refused` says why there are no prices at all.
    `span_error`, `drift`, `explained` and `wait_error` are the replay's fidelity (docs/price.md).
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
"""Collectives that no rank can finish before all have arrived; the root of a broadcast can."""


class Collectives(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The communication kernels of one process group and name, in order: what ranks are matched by.

    Times in nanoseconds since the first event of this rank's file; `elements` -1 where it was not recorded.
    """

    name: str
    group: str = ""
    start: tuple[int, ...] = ()
    length: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()


class Recording(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the trace was taken, and what that cost: it distorts what was measured.

    `stacks` says whether lines are known, and from what: ``frames``, ``call-stack`` or "". `overhead` is the
    time that the profiler itself took in the steps.
    """

    stacks: Literal["frames", "call-stack", ""] = ""
    with_stack: bool = False
    with_memory: bool = False
    with_shapes: bool = False
    overhead: int = 0
    overheads: dict[str, int] = {}
    events_per_step: int = 0
    truncated: bool = False


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One trace, summed up. All times are nanoseconds, totals over all steps.

    `idle` is the time in the steps in which the device neither computes nor copies; the `costs` add up to
    it. `utilization`, `sm_efficiency` (both 0 to 1) and `occupancy` (percent) are as docs/trace.md defines
    them, -1 where they are unknown. `efficiency` is None where no shapes were recorded, `prices` and `lanes`
    where none were asked for. `device` is the number of the GPU that was looked at, the busiest. Profiles
    with the same `launch` were recorded by ranks that were launched together; "" where nobody knows. Where
    the `coverage` is not complete, all of this is of what was recorded, and nothing is priced.
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


class _Document(msgspec.Struct, omit_defaults=True, kw_only=True):
    format: str = ""
    version: int = 0
    profiles: tuple[Profile, ...] = ()


def _checked_profiles(document: _Document) -> tuple[Profile, ...]:
    if not document.profiles:
        raise ValueError("there is no profile in it")
    return tuple(map(_checked_profile, document.profiles))


SAVED: SavedFormat[Sequence[Profile], tuple[Profile, ...]] = SavedFormat(
    "profile",
    "gapless-profile",
    1,
    _Document,
    pack=lambda profiles: {"profiles": tuple(profiles)},
    unpack=_checked_profiles,
    least=-MAX_NUMBER,  # clocks of hosts and devices differ, so that what was first may be before it
)
"""The file format of the profiles of one run."""
encode, decode, save, load = SAVED.encode, SAVED.decode, SAVED.save, SAVED.load
