"""`Times`: where the times of an estimate come from — the data sheet, or a real profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gapless.analyze.estimate.draws import Doubt
from gapless.analyze.estimate.emptying import emptying
from gapless.analyze.estimate.machine import Timed
from gapless.analyze.estimate.measure import Lookup, lookup
from gapless.analyze.estimate.programme_steps import Step
from gapless.analyze.estimate.spread import UNPROVEN, spread, unproven
from gapless.analyze.estimate.times import USUAL, Host, of_machines_with
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.families import UNKNOWN
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.memory import MemoryRun
from gapless.model.programme import Calibration, Entry, Gpu, HostSpeed, Programme

UNMEASURED, MEASURED, PROFILED = 0.5, 0.35, 0.1
"""How uncertain the host's times are (standard deviation of ``ln(true / estimated)``): those of a usual one,
as profiles of public machines differ; of one whose speed was measured, as models differ there
(`benchmarks/sheets/host.md`); and those of a profile of the same machine."""
SHAPED, NAMED = 0.05, 0.15
"""The same for operators that a profile knows: with the same shapes, and with others."""
LIKENED = 0.7
"""What is left of an operator's own uncertainty where a profile knows others of that GPU."""
COPIED = 0.3
"""The same for copies between host and device."""
WIDER = 0.2
"""The share of the GPU's time from which on it is told that operators are less well known."""


@dataclass(frozen=True)
class Times:
    """The times of a programme's entries."""

    gpu: Gpu
    host: Host = USUAL
    speed: HostSpeed | None = None
    calibration: Calibration | None = None
    measured: Lookup | None = None
    emptying: float = 0.0
    _known: dict[Entry, Timed] = field(default_factory=dict)

    @property
    def calibrated(self) -> str:
        return self.calibration.path if self.calibration else ""

    @property
    def host_doubt(self) -> float:
        """How uncertain the host's times are, as `doubt` says it."""
        if self.calibration is not None:
            return PROFILED
        return UNMEASURED if self.speed is None else MEASURED

    def doubt(self, entry: Entry) -> Doubt:
        """How uncertain the time of `entry` on the device is."""
        if entry.kind != "operator":
            return Doubt("copy between host and device", COPIED)
        asked = work(entry)
        if self.measured is not None:
            if self.measured.shaped(entry) is not None:
                return Doubt(asked.family, SHAPED)
            if self.measured.named(entry) is not None:
                return Doubt(asked.family, NAMED)
            return Doubt(asked.family, LIKENED * spread(asked, self.gpu))
        time = self.timed(entry).device
        far = spread(asked, self.gpu, time)
        return Doubt(asked.family, far, unproven(asked, entry.dtype, self.gpu, time))

    def timed(self, entry: Entry) -> Timed:
        """`entry` with its times."""
        known = self._known.get(entry)
        if known is None:
            known = self._known[entry] = self._timed(entry)
        return known

    def _timed(self, entry: Entry) -> Timed:
        if entry.kind == "wait" and entry.mechanism == "free":
            return Timed(entry, host=self.emptying)
        if entry.kind == "update":
            return Timed(entry, host=self.host.updating(entry))
        if entry.kind != "operator":
            return Timed(entry)
        asked = work(entry)
        device, kernels = device_time(asked, self.gpu), asked.kernels
        if self.measured is not None:
            found = self.measured.shaped(entry)
            named = found or self.measured.named(entry)
            device = found.device if found is not None else device * self.measured.factor(entry)
            kernels = max(round(named.kernels), 1) if named is not None else kernels
        return Timed(entry, round(device), kernels, self.host.needs(entry, kernels))

    def unknown(self, steps: Sequence[Step]) -> float:
        """The share of the device's time that operators have whose cost is not known."""
        return self._share(steps, self._is_unknown)

    def _is_unknown(self, entry: Entry) -> bool:
        return work(entry).family == UNKNOWN and not self._is_named(entry)

    def covered(self, steps: Sequence[Step]) -> float:
        """The share of the device's time that comes from the profile."""
        return self._share(steps, self._is_named)

    def _is_named(self, entry: Entry) -> bool:
        return self.measured is not None and self.measured.named(entry) is not None

    def _share(self, steps: Sequence[Step], chosen: Callable[[Entry], bool]) -> float:
        """The share of the operators' time on the device that those take which are `chosen`."""
        total = found = 0
        for step in steps:
            for entry in step:
                if entry.kind == "operator":
                    time = self.timed(entry).device
                    total += time
                    found += time if chosen(entry) else 0
        return found / total if total else 0.0

    def assumptions(self, steps: Sequence[Step]) -> Iterable[str]:
        """What these times take for granted, in sentences."""
        if self.calibration is not None:
            yield (
                f"times of the {self.calibration.gpu or 'GPU'} and of the CPU come from "
                f"{self.calibration.path}, which knows operators with {self.covered(steps):.0%} of the "
                "GPU's time; profiling slows the CPU"
            )
            return
        yield (
            f"{self.gpu.name} by its data sheet, at the shares of its peaks that real profiles show; "
            f"{self._host_told()}, without a profiler"
        )
        share = self._share(steps, lambda entry: self.doubt(entry).unproven > 0)
        if share >= WIDER:
            yield (
                f"operators with {share:.0%} of the GPU's time may be off by {UNPROVEN:.0%} together, which "
                "makes the interval wider: in 16 bits, below 20 µs or of kinds that no model with known "
                "times consists of"
            )

    def _host_told(self) -> str:
        if self.speed is None:
            beside = of_machines_with(self.gpu.name)
            usual = "a host of usual speed"
            return usual if beside == 1.0 else f"a host as beside such GPUs ({beside:.2g} × {usual[2:]})"
        whose = f"as measured on this machine ({self.speed.cpu})" if self.speed.measured else "as was said"
        return f"a host that takes {self.speed.factor:.2g} times the usual, {whose}"


def times_of(programme: Programme, asked: Sequence[MemoryRun] = ()) -> Times:
    """The times for a programme: its calibration's, where it has one. `asked` is what the run asked of each
    device's memory, where that was recorded."""
    measured = programme.calibration
    empties = any(one.kind == "wait" and one.mechanism == "free" for one in programme.entries)
    driver = emptying(asked or programme.emptied) if empties else 0.0
    if measured is None:
        beside = of_machines_with(programme.gpu.name)
        speed = programme.host
        if speed is not None and speed.apart and beside != 1.0:
            speed = None  # it is another kind of machine
        host = USUAL.paced(speed.factor if speed is not None else beside)
        return Times(programme.gpu, host, speed, emptying=driver)
    gpu = programme.gpu
    host = Host(
        forward=_or(measured.forward, USUAL.forward),
        backward=_or(measured.backward, USUAL.backward),
        optimizer=_or(measured.optimizer, USUAL.optimizer),
        tensor=0.0 if measured.optimizer >= 0 else USUAL.tensor,
        python=0.0 if measured.optimizer >= 0 else 1.0,
        call=_or(measured.call, USUAL.call),
    )
    found = lookup(measured, programme, lambda entry: device_time(work(entry), gpu))
    return Times(gpu, host, None, measured, found, driver)


def _or(measured: int, usual: float) -> float:
    return float(measured) if measured >= 0 else usual
