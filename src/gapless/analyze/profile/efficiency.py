"""What operators reach of the GPU, where the profile recorded their shapes."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from gapless.analyze.profile.kernels import launching_rows
from gapless.analyze.profile.trace_steps import StepSpans, covered
from gapless.model import gpus
from gapless.model.efficiency import Efficiency, Rate
from gapless.model.programme import Entry, Gpu, sheet
from gapless.trace.timeline import Facts, Ints, Timeline

MOST = 40
"""How many operators with their shapes a profile keeps."""
LOOKED_AT = 200
"""How many are looked at, longest first."""
_TF32 = re.compile(r"tf32|s1688|tensorop_s|s16816gemm_f32")
"""Kernels of products in fp32 that run on tensor cores."""
_ALIKE = 0.06
"""How far the memory of two cards may differ that are one."""
_SHORT = 5_000
"""Estimated nanoseconds up to which an elementwise kernel is little more than its start."""
_ENOUGH = 20
"""Calls that tell how long such kernels, or products, take on this GPU."""


def efficiency(timeline: Timeline, steps: StepSpans, device: int) -> Efficiency | None:
    """What operators on `device` in the steps reach; None where no shapes were recorded."""
    if not timeline.encoded_arguments:
        return None
    work = timeline.work
    crossing = timeline.names_where(lambda name: "Memcpy" in name and "DtoD" not in name)
    rows = np.flatnonzero((work.device == device) & (work.group < 0) & ~crossing[work.name])
    rows = rows[covered(steps.start, steps.end, work.start[rows], work.end[rows]) > 0]
    card = card_of(timeline.facts, device)
    rates = _rates(timeline, rows, card)
    if not rates:
        return None
    families: defaultdict[str, list[Rate]] = defaultdict(list)
    for family, rate in rates:
        families[family].append(rate)
    each = [rate for _, rate in rates]
    summed = (_summed(*one) for one in families.items())
    return Efficiency(
        card=card.name if card else "",
        estimated=isinstance(card, gpus.Gpu),
        time=int((work.end[rows] - work.start[rows]).sum()),
        covered=sum(one.time for one in each),
        families=tuple(sorted(summed, key=lambda one: -one.time)),
        operators=tuple(sorted(each, key=lambda one: max(one.roof, 0) - one.time)[:MOST]),
        short=_longer([one for one in families["pointwise"] if one.estimated < _SHORT * one.calls]),
        products=_longer(families["matmul"]),
    )


def _longer(rates: Sequence[Rate]) -> float:
    """How many times as long as estimated these take, in the median of all calls; -1 where they are few."""
    known = sorted((one.time / one.estimated, one.calls) for one in rates if one.estimated > 0)
    calls = sum(count for _, count in known)
    if calls < _ENOUGH:
        return -1.0
    passed = itertools.accumulate(count for _, count in known)
    return next(times for (times, _), until in zip(known, passed, strict=True) if 2 * until >= calls)


def card_of(facts: Facts, device: int) -> gpus.Card | None:
    """The data sheet of a profile's GPU, by its name, else by its vendor, its multiprocessors and
    its memory."""
    gpu = next((one for one in facts.gpus if one.number == device and one.name), None)
    if gpu is None:
        return None
    named = next((card for card in gpus.CARDS if card.name == gpu.name), None)
    if named is not None or not gpu.memory:
        return named
    brand = gpu.name.split()[0].replace("Tesla", "NVIDIA")
    for card in gpus.CARDS:
        alike = abs(card.total_memory / gpu.memory - 1) < _ALIKE
        same = card.name.replace("Tesla", "NVIDIA").startswith(brand)
        if same and alike and card.multi_processor_count == gpu.multiprocessors:
            return msgspec.structs.replace(card, name=gpu.name)
    return None


def _rates(timeline: Timeline, rows: Ints, card: gpus.Card | None) -> list[tuple[str, Rate]]:
    """The family and the rate of each operator with each of its shapes."""
    from gapless.analyze.kernel_times.families import ATTENTION, UNKNOWN, family_of, stem_of
    from gapless.analyze.kernel_times.recorded import entry

    def known(name: str) -> bool:
        family = family_of(name)
        inside = family == ATTENTION and "scaled_dot_product" not in stem_of(name) and name.startswith("aten")
        return family != UNKNOWN and not inside

    host, work = timeline.host, timeline.work
    launched = launching_rows(timeline, timeline.names_where(known))[rows]
    there = launched >= 0
    there[there] = host.arguments[launched[there]] >= 0
    rows, launched = rows[there], launched[there]
    keys = host.name[launched].astype(np.int64) * len(timeline.encoded_arguments) + host.arguments[launched]
    keys, first, which = np.unique(keys, return_index=True, return_inverse=True)
    times = np.bincount(which, work.end[rows] - work.start[rows], len(keys))
    calls = np.bincount(which[np.unique(launched, return_index=True)[1]], minlength=len(keys))
    found: defaultdict[Entry, list[int]] = defaultdict(lambda: [0, 0])
    for one in np.argsort(-times, kind="stable")[:LOOKED_AT].tolist():
        operator = int(launched[first[one]])
        kernel = timeline.names[work.name[rows[first[one]]]]
        narrow = _TF32.search(kernel) is not None
        asked = entry(timeline.names[host.name[operator]], timeline.arguments(operator), narrow)
        if asked is not None:
            found[asked][0] += int(calls[one])
            found[asked][1] += int(times[one])
    return [_rate(asked, count, time, card) for asked, (count, time) in found.items()]


def _rate(asked: Entry, calls: int, time: int, card: gpus.Card | None) -> tuple[str, Rate]:
    from gapless.analyze.kernel_times.durations import device_time, roof
    from gapless.analyze.kernel_times.operator_work import work

    each, nbytes = work(asked), asked.reads + asked.writes
    gpu = sheet(card) if card is not None else Gpu()
    emulated = isinstance(card, gpus.Gpu)
    return each.family, Rate(
        name=asked.name,
        shapes=asked.inputs,
        dtype=asked.dtype,
        calls=calls,
        time=time,
        flops=each.flops * calls,
        bytes=float(nbytes) * calls,
        roof=round(roof(each, nbytes, gpu) * calls) if card is not None else -1,
        estimated=round(device_time(each, gpu) * calls) if emulated else -1,
    )


def _summed(family: str, rates: Sequence[Rate]) -> Rate:
    known, emulated = rates[0].roof >= 0, rates[0].estimated >= 0
    return Rate(
        name=family,
        calls=sum(one.calls for one in rates),
        time=sum(one.time for one in rates),
        flops=sum(one.flops for one in rates),
        bytes=sum(one.bytes for one in rates),
        roof=sum(one.roof for one in rates) if known else -1,
        estimated=sum(one.estimated for one in rates) if emulated else -1,
    )
