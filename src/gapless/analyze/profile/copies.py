"""How fast copies between host and device are, and how fast they could be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered_time
from gapless.model import gpus
from gapless.model.copies import PINNED, STAGED, START, Memory
from gapless.model.profile import CopyTime
from gapless.replay.links import CopyKinds
from gapless.replay.links import classify_copies as named
from gapless.trace.timeline import Bools, Ints, Timeline, WorkKind, distinct, union

_MIN_LARGE_BYTES = 1 << 20
"""Only copies of at least this many bytes show the speed of the link: smaller ones are mostly latency."""


def copy_times(timeline: Timeline, steps: StepSpans, device: int) -> tuple[CopyTime, ...]:
    """Return the copies in the steps by direction and memory, longest total time first."""
    work, kinds = timeline.work, named(timeline)
    in_steps = (work.device == device) & (kinds.to_device | kinds.to_host) & (steps.at(work.start) >= 0)
    managed = timeline.names_where(lambda name: "Managed" in name)[work.name]
    groups: list[tuple[bool, Memory, Bools]] = []
    for to_device, of in ((True, kinds.to_device), (False, kinds.to_host)):
        unknown = in_steps & of & ~kinds.pageable & ~kinds.pinned & ~managed
        groups += [
            (to_device, "pageable", in_steps & of & kinds.pageable),
            (to_device, "pinned", in_steps & of & kinds.pinned & ~kinds.pageable),
            (to_device, "managed", in_steps & of & managed & ~kinds.pageable & ~kinds.pinned),
            (to_device, "unknown", unknown),
        ]
    length = work.end - work.start
    groups = sorted(
        (group for group in groups if group[2].any()), key=lambda group: -int(length[group[2]].sum())
    )
    limits = copy_limits(timeline, device)
    alone = _uncovered_times(timeline, steps, device, [rows for *_, rows in groups])
    return tuple(
        CopyTime(
            to_device=to_device,
            memory=memory,
            count=int(rows.sum()),
            bytes=int(np.maximum(work.bytes[rows], 0).sum()),
            time=int(length[rows].sum()),
            alone=lost,
            reach=max(limits[to_device][0], _mean_rate(timeline, rows)) if limits[to_device][0] else 0.0,
            measured=limits[to_device][1],
        )
        for (to_device, memory, rows), lost in zip(groups, alone, strict=True)
    )


def _uncovered_times(timeline: Timeline, steps: StepSpans, device: int, groups: Sequence[Bools]) -> list[int]:
    """Return how many nanoseconds of the steps each group adds to kernels and the groups before it."""
    work, kinds = timeline.work, named(timeline)
    rows = (work.device == device) & ~(kinds.to_device | kinds.to_host)
    start, end = union(work.start[rows], work.end[rows])
    busy = [int(covered_time(start, end, steps.start, steps.end).sum())]
    for group in groups:
        start, end = union(np.append(start, work.start[group]), np.append(end, work.end[group]))
        busy.append(int(covered_time(start, end, steps.start, steps.end).sum()))
    return [int(more) for more in np.diff(busy)]


def copy_limits(timeline: Timeline, device: int) -> dict[bool, tuple[float, bool]]:
    """Return GB/s that pinned copies can reach to the device (True) and to the host, and whether measured.

    Measured on large pinned copies of the direction, else of the other direction. Otherwise an estimate from
    the GPU's PCIe generation, no less than any rate in the profile; 0.0 if the GPU is unknown.
    """
    work, kinds = timeline.work, named(timeline)
    large = (work.device == device) & (work.bytes >= _MIN_LARGE_BYTES) & (work.end > work.start)
    shown = [_median_rate(timeline, large & kinds.pinned & of) for of in (kinds.to_device, kinds.to_host)]
    name = next((gpu.name for gpu in timeline.facts.gpus if gpu.number == device), "")
    rated = PINNED * gpus.pcie_bandwidth(name)
    limits = {}
    for to_device, own, other in ((True, shown[0], shown[1]), (False, shown[1], shown[0])):
        any_rate = _fastest(timeline, large & (kinds.to_device if to_device else kinds.to_host))
        measured = own or other
        limits[to_device] = (measured or (max(rated, any_rate) if rated else 0.0), bool(measured))
    return limits


def _median_rate(timeline: Timeline, rows: Bools) -> float:
    """Return the median GB/s of these copies: a few that competed for the link do not count."""
    work = timeline.work
    rates = work.bytes[rows] / (work.end[rows] - work.start[rows])
    return float(np.median(rates)) if len(rates) else 0.0


def _mean_rate(timeline: Timeline, rows: Bools) -> float:
    work = timeline.work
    return float(work.bytes[rows].sum() / max(int((work.end[rows] - work.start[rows]).sum()), 1))


def _fastest(timeline: Timeline, rows: Bools) -> float:
    work = timeline.work
    return float((work.bytes[rows] / (work.end[rows] - work.start[rows])).max(initial=0.0))


def pinned_factors(timeline: Timeline, kinds: CopyKinds, to_device: Sequence[bool]) -> dict[int, float]:
    """For each large pageable copy in these directions return the share of its time it takes if pinned.

    Left out are copies whose memory the profile does not record (AMD) and those of GPUs with an unknown
    link.
    """
    work = timeline.work
    factors: dict[int, float] = {}
    for device in distinct(work.device[work.kind == WorkKind.MEMCPY]).tolist():
        limits = copy_limits(timeline, device)
        for direction in to_device:
            of, rate = kinds.to_device if direction else kinds.to_host, limits[direction][0]
            if not rate:
                continue
            in_direction = (work.device == device) & of
            rows: Ints = np.flatnonzero(in_direction & kinds.pageable & (work.bytes > STAGED))
            length = np.maximum(work.end[rows] - work.start[rows], 1)
            factor = np.minimum((START + work.bytes[rows] / rate) / length, 1.0)
            factors |= dict(zip(rows.tolist(), factor.tolist(), strict=True))
    return factors
