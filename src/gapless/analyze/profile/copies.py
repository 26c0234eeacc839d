"""Copies between host and device: how fast they are, and how fast they could be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gapless.analyze.profile.trace_steps import StepSpans, covered
from gapless.model import gpus
from gapless.model.copies import PINNED, STAGED, START, Memory
from gapless.model.profile import CopyTime
from gapless.replay.links import Copies
from gapless.replay.links import copies as named
from gapless.trace.timeline import Bools, Ints, Timeline, WorkKind, distinct, union

_LARGE = 1 << 20
"""Bytes of copies that show what the link can do: smaller ones are mostly latency."""


def copy_times(timeline: Timeline, steps: StepSpans, device: int) -> tuple[CopyTime, ...]:
    """The copies in the steps by direction and memory, those that take the most time first."""
    work, kinds = timeline.work, named(timeline)
    here = (work.device == device) & (kinds.to_device | kinds.to_host) & (steps.at(work.start) >= 0)
    managed = timeline.names_where(lambda name: "Managed" in name)[work.name]
    groups: list[tuple[bool, Memory, Bools]] = []
    for to_device, of in ((True, kinds.to_device), (False, kinds.to_host)):
        rest = here & of & ~kinds.pageable & ~kinds.pinned & ~managed
        groups += [
            (to_device, "pageable", here & of & kinds.pageable),
            (to_device, "pinned", here & of & kinds.pinned & ~kinds.pageable),
            (to_device, "managed", here & of & managed & ~kinds.pageable & ~kinds.pinned),
            (to_device, "unknown", rest),
        ]
    length = work.end - work.start
    groups = sorted((one for one in groups if one[2].any()), key=lambda one: -int(length[one[2]].sum()))
    limits = reach(timeline, device)
    alone = _alone(timeline, steps, device, [rows for *_, rows in groups])
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


def _alone(timeline: Timeline, steps: StepSpans, device: int, groups: Sequence[Bools]) -> list[int]:
    """How much of the steps each of these adds to kernels and to the groups before it."""
    work, kinds = timeline.work, named(timeline)
    rows = (work.device == device) & ~(kinds.to_device | kinds.to_host)
    start, end = union(work.start[rows], work.end[rows])
    found = [int(covered(start, end, steps.start, steps.end).sum())]
    for group in groups:
        start, end = union(np.append(start, work.start[group]), np.append(end, work.end[group]))
        found.append(int(covered(start, end, steps.start, steps.end).sum()))
    return [int(more) for more in np.diff(found)]


def reach(timeline: Timeline, device: int) -> dict[bool, tuple[float, bool]]:
    """GB/s that pinned copies reach to the device (True) and to the host, and whether the profile shows it.

    As large pinned copies of the same direction do, else those of the other; else what the GPU's generation
    of PCIe allows, which is no less than anything in the profile reaches. 0.0 where nothing tells.
    """
    work, kinds = timeline.work, named(timeline)
    large = (work.device == device) & (work.bytes >= _LARGE) & (work.end > work.start)
    shown = [_median_rate(timeline, large & kinds.pinned & of) for of in (kinds.to_device, kinds.to_host)]
    name = next((one.name for one in timeline.facts.gpus if one.number == device), "")
    rated = PINNED * gpus.link(name)
    found = {}
    for to_device, own, other in ((True, shown[0], shown[1]), (False, shown[1], shown[0])):
        any_rate = _fastest(timeline, large & (kinds.to_device if to_device else kinds.to_host))
        known = own or other
        found[to_device] = (known or (max(rated, any_rate) if rated else 0.0), bool(known))
    return found


def _median_rate(timeline: Timeline, rows: Bools) -> float:
    """GB/s of these copies: of the median one, so that few that met others on the link do not count."""
    work = timeline.work
    rates = work.bytes[rows] / (work.end[rows] - work.start[rows])
    return float(np.median(rates)) if len(rates) else 0.0


def _mean_rate(timeline: Timeline, rows: Bools) -> float:
    work = timeline.work
    return float(work.bytes[rows].sum() / max(int((work.end[rows] - work.start[rows]).sum()), 1))


def _fastest(timeline: Timeline, rows: Bools) -> float:
    work = timeline.work
    return float((work.bytes[rows] / (work.end[rows] - work.start[rows])).max(initial=0.0))


def pinned_factors(timeline: Timeline, kinds: Copies, to_device: Sequence[bool]) -> dict[int, float]:
    """For each large pageable copy in these directions the part of its time that it takes from pinned memory.

    Copies of which the profile does not say the memory (AMD) are left as they are, and so are those of a
    GPU whose link is not known.
    """
    work = timeline.work
    found: dict[int, float] = {}
    for device in distinct(work.device[work.kind == WorkKind.MEMCPY]).tolist():
        limits = reach(timeline, device)
        for direction in to_device:
            of, rate = kinds.to_device if direction else kinds.to_host, limits[direction][0]
            if not rate:
                continue
            here = (work.device == device) & of
            rows: Ints = np.flatnonzero(here & kinds.pageable & (work.bytes > STAGED))
            length = np.maximum(work.end[rows] - work.start[rows], 1)
            factor = np.minimum((START + work.bytes[rows] / rate) / length, 1.0)
            found |= dict(zip(rows.tolist(), factor.tolist(), strict=True))
    return found
