"""A profile's numbers: where a step's time goes, why the GPU idles, ranks, phases, kernels and lines."""

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

_LEAST = 0.0005
"""Shares below this are left out."""
_MATTERS = 0.005
_MANY_RANKS = 16
_COLLECTIVES = 5
"""Kinds of collectives that stand unfolded."""


def tables(report: Report, profile: Profile, shared: Sequence[Shared] = ()) -> tuple[Table, ...]:
    """Every table of `profile`, that of `report`; `shared` are the collectives that ranks have in common."""
    per = max(profile.steps.count, 1)
    made = [_split(profile, per), _numbers(profile, per), _ranks(report.ranks)]
    made += [collectives(shared) if shared else None, _phases(profile, per)]
    made += [_copies(profile, per), _kernels(profile, per), *efficiencies(profile, per)]
    made += [_lines(profile, per), _prices(profile.prices)]
    return tuple(one for one in made if one is not None and (one.rows or one.notes))


def _split(profile: Profile, per: int) -> Table | None:
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
        if time / total >= _LEAST
    )
    step = "the recorded time" if profile.steps.source == "span" else "a step"
    whole = profile.coverage.complete
    notes = tuple(_idle(profile)) if whole else ()
    of = "" if whole else ", of what was recorded"
    return table(f"Where {step} goes{of}", f"share | of {step} | ~", rows, where="before", notes=notes)


def _idle(profile: Profile) -> Iterator[str]:
    """The GPU's idleness by cause; the parts add up to it."""
    total = profile.steps.total
    parts = [
        f"{CAUSES[cause]} {100 * idle / total:.1f}"
        for cause, idle in profile.idle_by_cause()
        if idle / total >= _LEAST
    ]
    if parts:
        yield f"GPU idle {100 * profile.idle / total:.1f} %: {', '.join(parts)}"


def _numbers(profile: Profile, per: int) -> Table | None:
    """How the device is used. Utilization is what nvidia-smi calls so, and said to be."""
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
    rows = (row(name, told(number)) for number, name, told in numbers if number >= 0)
    return table("How the GPU is used", "value", rows, shown=0)


def _ranks(ranks: Sequence[RankSummary]) -> Table | None:
    if not ranks:
        return None
    many = len(ranks) > _MANY_RANKS
    order = sorted(ranks, key=lambda one: (-one.late, -one.step)) if many else list(ranks)
    rows = [
        row(
            SourceLine(one.path, 0) if one.rank < 0 else str(one.rank),
            duration(one.step),
            percent(one.idle / one.step) if one.step and not one.incomplete else "?" if one.step else "",
            percent(one.communication / one.step) if one.step else "",
            duration(one.late) if one.late >= 0 else "?",
        )
        for one in order
    ]
    shown = _MANY_RANKS // 2 if many else -1
    columns, rest = "step | idle | communicates | arrives late", "ranks that arrive earlier"
    return table("Rank", columns, rows, shown=shown, rest=rest, where="before")


def collectives(shared: Sequence[Shared]) -> Table | None:
    """Each kind of collective, divided into waiting for the last rank and transfer."""
    rows = [
        row(
            f"{one.name} in {one.group}" if one.group and not one.group.startswith("stream") else one.name,
            three_digits(one.count),
            duration(one.waiting),
            duration(one.transfer),
        )
        for one in shared
    ]
    columns = "per step | waiting for the last rank | transfer"
    return table("Collective", columns, rows[:_ROWS], shown=_COLLECTIVES, where="before")


def _phases(profile: Profile, per: int) -> Table | None:
    rows = [
        row(one.name, duration(one.host / per), duration(one.device / per), duration(one.idle / per))
        for one in profile.phases
    ]
    return table("Phase", "CPU | GPU | GPU idle", rows, shown=0)


def _copies(profile: Profile, per: int) -> Table | None:
    """Copies between host and device, and what they could reach."""
    rows = [
        row(
            f"to the {'GPU' if one.to_device else 'CPU'}, {one.memory}",
            duration(one.time / per),
            duration(one.alone / per),
            size(round(one.bytes / per)),
            f"{one.rate:.2g}",
            f"{one.reach:.2g}{'' if one.measured else ' (usual)'}" if one.reach else "?",
        )
        for one in profile.copies
    ]
    columns = "GPU time | alone | bytes | GB/s | pinned"
    return table("Copy", columns, rows, shown=-1 if copies_dominate(profile) else 0)


def _kernels(profile: Profile, per: int) -> Table | None:
    rows = [
        row(
            one.name + (f" ({one.operator})" if one.operator else ""),
            duration(one.total / per),
            three_digits(one.calls / per),
        )
        for one in profile.kernels
    ]
    return table("Kernel", "GPU time | launches", rows[:_ROWS], shown=0)


_ROWS = 30


def _lines(profile: Profile, per: int) -> Table | None:
    rows = [
        row(one.site.line, one.site.operator, duration(one.total / per), three_digits(one.kernels / per))
        for one in profile.lines
        if one.site.line is not None
    ]
    return table("Launched at", "<operator | GPU time | kernels", rows[:_ROWS], shown=0)


def _prices(prices: Prices | None) -> Table | None:
    """What all waits together cost."""
    if prices is None or prices.refused or not prices.span or not (prices.each or prices.asked):
        return None
    if prices.reasons:
        return Table(title="Prices", notes=(f"Prices are upper limits: {'; '.join(prices.reasons)}",))
    if prices.all < _MATTERS * prices.span:
        return None
    less, limit = percent(prices.all / prices.span), LIMITS.get(prices.remains, prices.remains)
    left = duration(prices.span - prices.all)
    told = f"Without all syncs {duration(prices.span)} would be {left}, {less} less; then {limit}"
    return Table(title="Prices", notes=(told,))
