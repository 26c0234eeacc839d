"""Choose the main device of a file; summarise the others."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.memory.shortfall import ends_with_failure
from gapless.memory.simulate import simulate
from gapless.memory.trials import TrialConditions
from gapless.model.memory import MemoryRun
from gapless.model.memory_answer import OtherDevice


def count_failures(run: MemoryRun, where: TrialConditions) -> int:
    """Count the requests that fail: in the recorded run, or under the limit given by `where`."""
    if run.refusals and where.capacity < 0:
        return len(run.refusals)
    if where.capacity < 0 and run.limit < 0:
        return 0
    outcome = simulate(run, **where._asdict())
    return outcome.failures + (outcome.shortage is not None)


def choose_main(runs: Sequence[MemoryRun], where: TrialConditions) -> MemoryRun:
    """Return the run to report: one that ended with a failure, else one that failed, latest first; else the
    busiest.
    """

    def weight(run: MemoryRun) -> tuple[int, ...]:
        failed = count_failures(run, where)
        last = run.refusals[-1].event if run.refusals else -1
        when = run.began + run.time[last] if failed and run.time and last >= 0 else -1
        held = sum(segment.size for segment in run.start)
        return failed > 0, failed > 0 and ends_with_failure(run), when, len(run), held, -run.device

    return max(runs, key=weight) if len(runs) > 1 else runs[0]


def summarize_others(
    runs: Sequence[MemoryRun], main: MemoryRun, where: TrialConditions
) -> tuple[OtherDevice, ...]:
    """Summarise the devices in use other than that of `main`."""
    devices = (
        OtherDevice(device=run.device, peak_reserved=_peak(run), failures=count_failures(run, where))
        for run in runs
        if run is not main
    )
    return tuple(device for device in devices if device.peak_reserved or device.failures)


def _peak(run: MemoryRun) -> int:
    if run.recorded is not None:
        return run.recorded.peak_reserved
    return simulate(run).peak_reserved
