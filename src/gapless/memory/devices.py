"""The devices of one file: which of them is told of first, and a line for each other."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.memory.shortfall import ended
from gapless.memory.simulate import simulate
from gapless.memory.trials import Where
from gapless.model.memory import MemoryRun
from gapless.model.memory_answer import OtherDevice


def failures(run: MemoryRun, where: Where) -> int:
    """How many requests fail: in the recorded run, or under the limit that is asked about."""
    if run.refusals and where.capacity < 0:
        return len(run.refusals)
    if where.capacity < 0 and run.limit < 0:
        return 0
    outcome = simulate(run, **where._asdict())
    return outcome.failures + (outcome.shortage is not None)


def first(runs: Sequence[MemoryRun], where: Where) -> MemoryRun:
    """The run to tell of: one that failed, and ended with that, the last that did; else the busiest."""

    def weight(run: MemoryRun) -> tuple[int, ...]:
        failed = failures(run, where)
        last = run.refusals[-1].event if run.refusals else -1
        when = run.began + run.time[last] if failed and run.time and last >= 0 else -1
        held = sum(one.size for one in run.start)
        return failed > 0, failed > 0 and ended(run), when, len(run), held, -run.device

    return max(runs, key=weight) if len(runs) > 1 else runs[0]


def others(runs: Sequence[MemoryRun], told: MemoryRun, where: Where) -> tuple[OtherDevice, ...]:
    """The devices that are not `told` of, and that are in use."""
    found = (
        OtherDevice(device=run.device, peak_reserved=_peak(run), failures=failures(run, where))
        for run in runs
        if run is not told
    )
    return tuple(one for one in found if one.peak_reserved or one.failures)


def _peak(run: MemoryRun) -> int:
    if run.recorded is not None:
        return run.recorded.peak_reserved
    return simulate(run).peak_reserved
