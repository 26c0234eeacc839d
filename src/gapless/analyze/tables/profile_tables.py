"""Tables of a profile: where a step's time goes, why the GPU idles, ranks, phases, kernels and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gapless.analyze.phrases.copy_share import copies_dominate
from gapless.analyze.tables.efficiency_tables import efficiencies
from gapless.model import Profile, RankSummary, Report, SourceLine, Table
from gapless.model.profile import Prices
from gapless.model.ranks import Shared
from gapless.model.table import row, table
from gapless.model.wording import CAUSES, LIMITS, PARTS, duration, percent, size, three_digits

_MIN_SHARE_SHOWN = 0.0005
"""Shares below this would round to 0.0 % and are left out."""
_MIN_SHARE_PRICED = 0.005
"""Share of the trace that syncs must cost for their price to be shown."""
_MAX_RANKS_SHOWN = 16
"""Ranks up to which all are shown; of more, half as many."""
_MAX_COLLECTIVES_SHOWN = 5
"""Kinds of collectives shown without unfolding."""


def tables(report: Report, profile: Profile, shared: Sequence[Shared] = ()) -> tuple[Table, ...]:
    """Return the tables of `profile`; `shared` are the collectives common to all ranks."""
    per = max(profile.steps.count, 1)
    results = [_split(profile, per), _numbers(profile, per), _ranks(report.ranks)]
    results += [collectives(shared) if shared else None, _phases(profile, per)]
    results += [_copies(profile, per), _kernels(profile, per), *efficiencies(profile, per)]
    results += [_lines(profile, per), _prices(profile.prices)]
    return tuple(table for table in results if table is not None and (table.rows or table.notes))


def _split(profile: Profile, per: int) -> Table | None:
    """Return how a step divides by what the GPU does."""
    total = profile.steps.total
    if not total:
        return None
    parts = [(label, getattr(profile.split, name), name) for name, label in PARTS]
    longest = max(time for _, time, _ in parts) or 1
    rows = (
        row(
            label,
            f"{100 * time / total:.1f} %",
            duration(time / per),
            time / longest,
            tone="good" if name == "kernel" else "",
        )
        for label, time, name in parts
        if time / total >= _MIN_SHARE_SHOWN
    )
    step = "the recorded time" if profile.steps.source == "span" else "a step"
    whole = profile.coverage.complete
    notes = tuple(_idle(profile)) if whole else ()
    recorded_note = "" if whole else ", of what was recorded"
    return table(
        f"Where {step} goes{recorded_note}", f"share | of {step} | ~", rows, where="before", notes=notes
    )


def _idle(profile: Profile) -> Iterator[str]:
    """Yield the GPU's idleness by cause; the causes add up to it."""
    total = profile.steps.total
    parts = [
        f"{CAUSES[cause]} {100 * idle / total:.1f}"
        for cause, idle in profile.idle_by_cause()
        if idle / total >= _MIN_SHARE_SHOWN
    ]
    if parts:
        yield f"GPU idle {100 * profile.idle / total:.1f} %: {', '.join(parts)}"


def _numbers(profile: Profile, per: int) -> Table | None:
    """Say how the GPU is used; utilization is as nvidia-smi defines it."""
    launches, memory = profile.launches, profile.memory
    each = "" if profile.steps.source == "span" else " per step"
    ahead = launches.depth if launches.count else -1.0
    numbers: tuple[tuple[float, str, Callable[[Any], str]], ...] = (
        (launches.count / per or -1.0, f"kernel launches{each}", three_digits),
        (ahead, "launches the CPU runs ahead of the GPU, on average", three_digits),
        (memory.peak_allocated, "memory allocated at the peak", size),
        (memory.peak_reserved, "memory reserved at the peak", size),
        (profile.utilization, "share of the time with a kernel running (nvidia-smi's utilization)", percent),
        (profile.sm_efficiency, "est. SM efficiency: multiprocessors with work", percent),
        (profile.occupancy / 100, "est. occupancy: share of the threads they could hold", percent),
    )
    rows = (row(name, show(number)) for number, name, show in numbers if number >= 0)
    return table("How the GPU is used", "value", rows, shown=0)


def _ranks(ranks: Sequence[RankSummary]) -> Table | None:
    """Return a row per rank; of many ranks, the latest first."""
    if not ranks:
        return None
    many = len(ranks) > _MAX_RANKS_SHOWN
    order = sorted(ranks, key=lambda rank: (-rank.late, -rank.step)) if many else list(ranks)
    rows = [
        row(
            SourceLine(rank.path, 0) if rank.rank < 0 else str(rank.rank),
            duration(rank.step),
            percent(rank.idle / rank.step) if rank.step and not rank.incomplete else "?" if rank.step else "",
            percent(rank.communication / rank.step) if rank.step else "",
            duration(rank.late) if rank.late >= 0 else "?",
        )
        for rank in order
    ]
    shown = _MAX_RANKS_SHOWN // 2 if many else -1
    columns, rest = "step | idle | communicates | arrives late", "ranks that arrive earlier"
    return table("Rank", columns, rows, shown=shown, rest=rest, where="before")


def collectives(shared: Sequence[Shared]) -> Table | None:
    """Divide each kind of collective into waiting for the last rank and transfer."""
    rows = [
        row(
            f"{collective.name} in {collective.group}"
            if collective.group and not collective.group.startswith("stream")
            else collective.name,
            three_digits(collective.count),
            duration(collective.waiting),
            duration(collective.transfer),
        )
        for collective in shared
    ]
    columns = "per step | waiting for the last rank | transfer"
    return table("Collective", columns, rows[:_MAX_ROWS], shown=_MAX_COLLECTIVES_SHOWN, where="before")


def _phases(profile: Profile, per: int) -> Table | None:
    """Return CPU, GPU and idle time of each phase per step."""
    rows = [
        row(phase.name, duration(phase.host / per), duration(phase.device / per), duration(phase.idle / per))
        for phase in profile.phases
    ]
    return table("Phase", "CPU | GPU | GPU idle", rows, shown=0)


def _copies(profile: Profile, per: int) -> Table | None:
    """List copies between host and device, with the rate they could reach."""
    rows = [
        row(
            f"to the {'GPU' if kind.to_device else 'CPU'}, {kind.memory}",
            duration(kind.time / per),
            duration(kind.alone / per),
            size(round(kind.bytes / per)),
            f"{kind.rate:.2g}",
            f"{kind.reach:.2g}{'' if kind.measured else ' (usual)'}" if kind.reach else "?",
        )
        for kind in profile.copies
    ]
    columns = "GPU time | alone | bytes | GB/s | pinned"
    return table("Copy", columns, rows, shown=-1 if copies_dominate(profile) else 0)


def _kernels(profile: Profile, per: int) -> Table | None:
    """Return the kernels that take most GPU time per step."""
    rows = [
        row(
            kernel.name + (f" ({kernel.operator})" if kernel.operator else ""),
            duration(kernel.total / per),
            three_digits(kernel.calls / per),
        )
        for kernel in profile.kernels
    ]
    return table("Kernel", "GPU time | launches", rows[:_MAX_ROWS], shown=0)


_MAX_ROWS = 30
"""Rows shown of kernels, lines and collectives."""


def _lines(profile: Profile, per: int) -> Table | None:
    """Return the lines whose kernels take most GPU time per step."""
    rows = [
        row(line.site.line, line.site.operator, duration(line.total / per), three_digits(line.kernels / per))
        for line in profile.lines
        if line.site.line is not None
    ]
    return table("Launched at", "<operator | GPU time | kernels", rows[:_MAX_ROWS], shown=0)


def _prices(prices: Prices | None) -> Table | None:
    """Say what all syncs cost together; None if unknown or next to nothing."""
    if prices is None or prices.refused or not prices.span or not (prices.each or prices.asked):
        return None
    if prices.reasons:
        return Table(title="Prices", notes=(f"Prices are upper limits: {'; '.join(prices.reasons)}",))
    if prices.all < _MIN_SHARE_PRICED * prices.span:
        return None
    less, limit = percent(prices.all / prices.span), LIMITS.get(prices.remains, prices.remains)
    left = duration(prices.span - prices.all)
    note = f"Without all syncs {duration(prices.span)} would be {left}, {less} less; then {limit}"
    return Table(title="Prices", notes=(note,))
