"""`Times`: the times of an estimate, from the data sheet or from a real profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress

import msgspec

from gapless.analyze.estimate.draws import TimeUncertainty
from gapless.analyze.estimate.machine import TimedEntry
from gapless.analyze.estimate.measure import MeasuredTimes, index_measurements
from gapless.analyze.estimate.programme_steps import Step
from gapless.analyze.estimate.spread import UNPROVEN_SPREAD, time_spread, unproven_spread
from gapless.analyze.estimate.times import USUAL, HostTimes, host_factor_beside
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.families import UNKNOWN
from gapless.analyze.kernel_times.operator_work import work
from gapless.memory.simulate import simulate
from gapless.model.memory import EMPTY, FREE, MemoryRun
from gapless.model.memory_calls import CallTimes
from gapless.model.programme import Calibration, Entry, GpuRates, HostSpeed, Programme

UNMEASURED_HOST_SPREAD, MEASURED_HOST_SPREAD, PROFILED_HOST_SPREAD = 0.5, 0.35, 0.1
"""Uncertainty of the host's times (standard deviation of ``ln(true / estimated)``): of a usual host, as
profiles of public machines differ; of a host of measured speed, as models differ there
(`benchmarks/sheets/host.md`); and of a profile of the same machine."""
SAME_SHAPES_SPREAD, OTHER_SHAPES_SPREAD = 0.05, 0.15
"""The uncertainty of operators in a profile: with the same shapes, and with others."""
OTHER_OPERATORS_FACTOR = 0.7
"""Factor on an operator's own uncertainty if a profile has others of that GPU."""
COPY_SPREAD = 0.3
"""The uncertainty of copies between host and device."""
MIN_SHARE_UNPROVEN = 0.2
"""Share of the GPU's time from which on the report says that operators are less well known."""


@dataclass(frozen=True)
class Times:
    """The times of a programme's entries."""

    gpu: GpuRates
    host: HostTimes = USUAL
    speed: HostSpeed | None = None
    calibration: Calibration | None = None
    measured: MeasuredTimes | None = None
    emptying: float = 0.0
    _times_by_entry: dict[Entry, TimedEntry] = field(default_factory=dict)

    @property
    def calibration_path(self) -> str:
        """The profile whose times are used; empty if none is."""
        return self.calibration.path if self.calibration else ""

    @property
    def host_doubt(self) -> float:
        """Uncertainty of the host's times, as in `doubt`."""
        if self.calibration is not None:
            return PROFILED_HOST_SPREAD
        return UNMEASURED_HOST_SPREAD if self.speed is None else MEASURED_HOST_SPREAD

    def doubt(self, entry: Entry) -> TimeUncertainty:
        """Return how uncertain the device time of `entry` is."""
        if entry.kind != "operator":
            return TimeUncertainty("copy between host and device", COPY_SPREAD)
        work_ = work(entry)
        if self.measured is not None:
            if self.measured.of_shapes(entry) is not None:
                return TimeUncertainty(work_.family, SAME_SHAPES_SPREAD)
            if self.measured.of_operator(entry) is not None:
                return TimeUncertainty(work_.family, OTHER_SHAPES_SPREAD)
            return TimeUncertainty(work_.family, OTHER_OPERATORS_FACTOR * time_spread(work_, self.gpu))
        time = self.add_times(entry).device
        far = time_spread(work_, self.gpu, time)
        return TimeUncertainty(work_.family, far, unproven_spread(work_, entry.dtype, self.gpu, time))

    def add_times(self, entry: Entry) -> TimedEntry:
        """Return `entry` with its times."""
        if entry not in self._times_by_entry:
            self._times_by_entry[entry] = self._entry_times(entry)
        return self._times_by_entry[entry]

    def _entry_times(self, entry: Entry) -> TimedEntry:
        if entry.kind == "wait" and entry.mechanism == "free":
            return TimedEntry(entry, host=self.emptying)
        if entry.kind == "update":
            return TimedEntry(entry, host=self.host.optimizer_time(entry))
        if entry.kind != "operator":
            return TimedEntry(entry)
        work_ = work(entry)
        device, kernels = device_time(work_, self.gpu), work_.kernels
        if self.measured is not None:
            of_shapes = self.measured.of_shapes(entry)
            of_operator = of_shapes or self.measured.of_operator(entry)
            device = of_shapes.device if of_shapes is not None else device * self.measured.factor(entry)
            kernels = max(round(of_operator.kernels), 1) if of_operator is not None else kernels
        return TimedEntry(entry, round(device), kernels, self.host.operator_time(entry, kernels))

    def unknown(self, steps: Sequence[Step]) -> float:
        """Return the share of the device's time taken by operators of unknown cost."""
        return self._share(steps, self._is_unknown)

    def _is_unknown(self, entry: Entry) -> bool:
        return work(entry).family == UNKNOWN and not self._is_named(entry)

    def profile_share(self, steps: Sequence[Step]) -> float:
        """Return the share of the device's time that comes from the profile."""
        return self._share(steps, self._is_named)

    def _is_named(self, entry: Entry) -> bool:
        return self.measured is not None and self.measured.of_operator(entry) is not None

    def _share(self, steps: Sequence[Step], test: Callable[[Entry], bool]) -> float:
        """Return the share of the operators' device time taken by those that pass `test`."""
        total = matching = 0
        for step in steps:
            for entry in step:
                if entry.kind == "operator":
                    time = self.add_times(entry).device
                    total += time
                    matching += time if test(entry) else 0
        return matching / total if total else 0.0

    def assumptions(self, steps: Sequence[Step]) -> Iterable[str]:
        """Yield the assumptions behind these times, in sentences."""
        if self.calibration is not None:
            yield (
                f"times of the {self.calibration.gpu or 'GPU'} and of the CPU come from "
                f"{self.calibration.path}, which knows operators with {self.profile_share(steps):.0%} of the "
                "GPU's time; profiling slows the CPU"
            )
            return
        yield (
            f"{self.gpu.name} by its data sheet, at the shares of its peaks that real profiles show; "
            f"{self._describe_host()}, without a profiler"
        )
        share = self._share(steps, lambda entry: self.doubt(entry).unproven > 0)
        if share >= MIN_SHARE_UNPROVEN:
            yield (
                f"operators with {share:.0%} of the GPU's time may be off by {UNPROVEN_SPREAD:.0%} "
                "together, which makes the interval wider: in 16 bits, below 20 µs or of kinds that no model "
                "with known times consists of"
            )

    def _describe_host(self) -> str:
        if self.speed is None:
            beside = host_factor_beside(self.gpu.name)
            usual = "a host of usual speed"
            return usual if beside == 1.0 else f"a host as beside such GPUs ({beside:.2g} × {usual[2:]})"
        whose = f"as measured on this machine ({self.speed.cpu})" if self.speed.measured else "as was said"
        return f"a host that takes {self.speed.factor:.2g} times the usual, {whose}"


def times_of(programme: Programme, runs: Sequence[MemoryRun] = ()) -> Times:
    """Return the times for a programme, from its calibration if it has one. `runs` are the memory requests
    per device, if they were recorded: replayed, they give the time that ``empty_cache`` takes."""
    measured = programme.calibration
    empties = any(entry.kind == "wait" and entry.mechanism == "free" for entry in programme.entries)
    driver = emptying_cost(runs or programme.emptied) if empties else 0.0
    if measured is None:
        beside = host_factor_beside(programme.gpu.name)
        speed = programme.host
        if speed is not None and speed.apart and beside != 1.0:
            speed = None  # measured on another kind of machine
        host = USUAL.change_pace(speed.factor if speed is not None else beside)
        return Times(programme.gpu, host, speed, emptying=driver)
    gpu = programme.gpu
    host = HostTimes(
        forward=_or(measured.forward, USUAL.forward),
        backward=_or(measured.backward, USUAL.backward),
        optimizer=_or(measured.optimizer, USUAL.optimizer),
        tensor=0.0 if measured.optimizer >= 0 else USUAL.tensor,
        python=0.0 if measured.optimizer >= 0 else 1.0,
        call=_or(measured.call, USUAL.call),
    )
    measured_times = index_measurements(measured, programme, lambda entry: device_time(work(entry), gpu))
    return Times(gpu, host, None, measured, measured_times, driver)


def _or(measured: int, usual: float) -> float:
    return float(measured) if measured >= 0 else usual


_COLUMNS = ("action", "ident", "size", "stream", "place", "time", "address", "pool")


def emptying_cost(runs: Sequence[MemoryRun]) -> float:
    """Nanoseconds of driver calls that one call of ``empty_cache`` causes, then and later.

    The caching allocator is replayed on the run's requests, with these calls and without them. A call that
    finds nothing to free does not wait and costs nothing. Without a recording the cost is freeing and
    allocating one segment.
    """
    count = sum(_count_effective(run) for run in runs)
    if not count:
        return float(CallTimes().free + CallTimes().malloc)
    more = sum(simulate(run).price - simulate(_without_emptying(run)).price for run in runs)
    return max(more, 0) / count


def _count_effective(run: MemoryRun) -> int:
    """Count the calls before which something was freed since the last call."""
    calls, freed = 0, False
    for action in run.action:
        if action == FREE:
            freed = True
        elif action == EMPTY:
            calls += freed
            freed = False
    return calls


def _without_emptying(run: MemoryRun) -> MemoryRun:
    """Return the same run without calls that empty the cache."""
    keep = [action != EMPTY for action in run.action]
    columns = {name: tuple(compress(getattr(run, name), keep)) for name in _COLUMNS}
    return msgspec.structs.replace(run, **columns, used=(), batches=())
