"""Compare operators with the limits of the GPU, where the profile recorded their shapes."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from gapless.analyze.profile.kernels import launching_rows
from gapless.analyze.profile.trace_steps import StepSpans, covered_time
from gapless.model import gpus
from gapless.model.efficiency import Efficiency, Rate
from gapless.model.programme import Entry, GpuRates, gpu_limits
from gapless.trace.timeline import Facts, Ints, Timeline

MAX_OPERATORS_KEPT = 40
"""How many operators with their shapes a profile keeps, to stay small."""
MAX_OPERATORS_EXAMINED = 200
"""How many operators are examined, longest first: the rest takes little time."""
_TF32 = re.compile(r"tf32|s1688|tensorop_s|s16816gemm_f32")
"""Matches kernels that compute fp32 products on tensor cores."""
_MAX_MEMORY_DIFFERENCE = 0.06
"""Relative difference of memory up to which two cards are the same: drivers reserve some of it."""
_MAX_SHORT_TIME = 5_000
"""Estimated nanoseconds up to which an elementwise kernel is mostly launch latency."""
_MIN_CALLS = 20
"""Calls needed for a reliable median of short kernels, or of products."""


def measure_efficiency(timeline: Timeline, steps: StepSpans, device: int) -> Efficiency | None:
    """Return what operators on `device` reach in the steps; None if no shapes were recorded."""
    if not timeline.encoded_arguments:
        return None
    work = timeline.work
    crossing = timeline.names_where(lambda name: "Memcpy" in name and "DtoD" not in name)
    rows = np.flatnonzero((work.device == device) & (work.group < 0) & ~crossing[work.name])
    rows = rows[covered_time(steps.start, steps.end, work.start[rows], work.end[rows]) > 0]
    card = card_of(timeline.facts, device)
    rates = _operator_rates(timeline, rows, card)
    if not rates:
        return None
    families: defaultdict[str, list[Rate]] = defaultdict(list)
    for family, rate in rates:
        families[family].append(rate)
    all_rates = [rate for _, rate in rates]
    summed = (_sum_rates(*item) for item in families.items())
    return Efficiency(
        card=card.name if card else "",
        estimated=isinstance(card, gpus.Gpu),
        time=int((work.end[rows] - work.start[rows]).sum()),
        covered=sum(rate.time for rate in all_rates),
        families=tuple(sorted(summed, key=lambda rate: -rate.time)),
        operators=tuple(
            sorted(all_rates, key=lambda rate: max(rate.roof, 0) - rate.time)[:MAX_OPERATORS_KEPT]
        ),
        short=_time_over_estimate(
            [rate for rate in families["pointwise"] if rate.estimated < _MAX_SHORT_TIME * rate.calls]
        ),
        products=_time_over_estimate(families["matmul"]),
    )


def _time_over_estimate(rates: Sequence[Rate]) -> float:
    """Return the median ratio of measured to estimated time over all calls; -1 if there are too few."""
    ratios = sorted((rate.time / rate.estimated, rate.calls) for rate in rates if rate.estimated > 0)
    calls = sum(count for _, count in ratios)
    if calls < _MIN_CALLS:
        return -1.0
    cumulative = itertools.accumulate(count for _, count in ratios)
    return next(times for (times, _), until in zip(ratios, cumulative, strict=True) if 2 * until >= calls)


def card_of(facts: Facts, device: int) -> gpus.Card | None:
    """Return the data sheet of a profile's GPU, by name, else by vendor, multiprocessors and
    memory."""
    gpu = next((candidate for candidate in facts.gpus if candidate.number == device and candidate.name), None)
    if gpu is None:
        return None
    by_name = next((card for card in gpus.CARDS if card.name == gpu.name), None)
    if by_name is not None or not gpu.memory:
        return by_name
    brand = gpu.name.split()[0].replace("Tesla", "NVIDIA")
    for card in gpus.CARDS:
        alike = abs(card.total_memory / gpu.memory - 1) < _MAX_MEMORY_DIFFERENCE
        same = card.name.replace("Tesla", "NVIDIA").startswith(brand)
        if same and alike and card.multi_processor_count == gpu.multiprocessors:
            return msgspec.structs.replace(card, name=gpu.name)
    return None


def _operator_rates(timeline: Timeline, rows: Ints, card: gpus.Card | None) -> list[tuple[str, Rate]]:
    """Return the family and the rate of each operator with each of its shapes."""
    from gapless.analyze.kernel_times.families import ATTENTION, UNKNOWN, family_of, stem_of
    from gapless.analyze.kernel_times.recorded import entry

    def is_rated(name: str) -> bool:
        family = family_of(name)
        inside = family == ATTENTION and "scaled_dot_product" not in stem_of(name) and name.startswith("aten")
        return family != UNKNOWN and not inside

    host, work = timeline.host, timeline.work
    launched = launching_rows(timeline, timeline.names_where(is_rated))[rows]
    has_shapes = launched >= 0
    has_shapes[has_shapes] = host.arguments[launched[has_shapes]] >= 0
    rows, launched = rows[has_shapes], launched[has_shapes]
    keys = host.name[launched].astype(np.int64) * len(timeline.encoded_arguments) + host.arguments[launched]
    keys, first, which = np.unique(keys, return_index=True, return_inverse=True)
    times = np.bincount(which, work.end[rows] - work.start[rows], len(keys))
    calls = np.bincount(which[np.unique(launched, return_index=True)[1]], minlength=len(keys))
    calls_and_time: defaultdict[Entry, list[int]] = defaultdict(lambda: [0, 0])
    for position in np.argsort(-times, kind="stable")[:MAX_OPERATORS_EXAMINED].tolist():
        operator = int(launched[first[position]])
        kernel = timeline.names[work.name[rows[first[position]]]]
        narrow = _TF32.search(kernel) is not None
        entry_ = entry(timeline.names[host.name[operator]], timeline.arguments(operator), narrow)
        if entry_ is not None:
            calls_and_time[entry_][0] += int(calls[position])
            calls_and_time[entry_][1] += int(times[position])
    return [_rate(entry_, count, time, card) for entry_, (count, time) in calls_and_time.items()]


def _rate(entry: Entry, calls: int, time: int, card: gpus.Card | None) -> tuple[str, Rate]:
    from gapless.analyze.kernel_times.durations import device_time, roof
    from gapless.analyze.kernel_times.operator_work import work

    work_, nbytes = work(entry), entry.reads + entry.writes
    gpu = gpu_limits(card) if card is not None else GpuRates()
    emulated = isinstance(card, gpus.Gpu)
    return work_.family, Rate(
        name=entry.name,
        shapes=entry.inputs,
        dtype=entry.dtype,
        calls=calls,
        time=time,
        flops=work_.flops * calls,
        bytes=float(nbytes) * calls,
        roof=round(roof(work_, nbytes, gpu) * calls) if card is not None else -1,
        estimated=round(device_time(work_, gpu) * calls) if emulated else -1,
    )


def _sum_rates(family: str, rates: Sequence[Rate]) -> Rate:
    has_roof, has_estimate = rates[0].roof >= 0, rates[0].estimated >= 0
    return Rate(
        name=family,
        calls=sum(rate.calls for rate in rates),
        time=sum(rate.time for rate in rates),
        flops=sum(rate.flops for rate in rates),
        bytes=sum(rate.bytes for rate in rates),
        roof=sum(rate.roof for rate in rates) if has_roof else -1,
        estimated=sum(rate.estimated for rate in rates) if has_estimate else -1,
    )
