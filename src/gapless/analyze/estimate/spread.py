"""Estimate how far off the estimated time of a kernel may be.

By one rule (``benchmarks/_kernel_spread.py``): the error of kernels that were kept from the fit, within a
GPU, and the difference between GPUs, extrapolated from the sample of them to the next one.
``benchmarks/sheets/kernel_times.md`` has both, and how many kernels lie in the interval, by family and GPU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.analyze.kernel_times.cards import reach
from gapless.analyze.kernel_times.device_work import DeviceWork
from gapless.analyze.kernel_times.durations import device_time, peak
from gapless.analyze.kernel_times.families import (
    ATTENTION,
    CONVOLUTION,
    DISTANCE,
    INDEXING,
    MATMUL,
    RECURRENT,
    TRITON,
    UNKNOWN,
)
from gapless.model.programme import GpuRates


class LogSpread(NamedTuple):
    """Standard deviations of the logarithm of true over estimated: below 20 µs, below 100 µs, and above."""

    short: float
    middle: float
    long: float


SPREADS: dict[str, LogSpread] = {
    "products in fp32": LogSpread(
        0.4, 0.39, 0.11
    ),  # no short ones in the tables; middle ones of unsteady cards
    "products in 16 bits": LogSpread(0.26, 0.15, 0.11),
    "convolutions in fp32": LogSpread(0.7, 0.7, 0.4),
    "convolutions in 16 bits": LogSpread(0.7, 0.7, 0.5),  # not in the tables
    "attention": LogSpread(0.41, 0.55, 0.24),
    "attention, else": LogSpread(0.5, 0.55, 0.4),  # backward, or not in 16 bits: not in the tables
    "pointwise": LogSpread(0.35, 0.12, 0.06),
    # As much as GPUs differ that have no measured share for norms.
    "layer norm": LogSpread(0.28, 0.28, 0.19),
    "softmax": LogSpread(0.3, 0.3, 0.25),
    "gather": LogSpread(0.28, 0.26, 0.27),
    # None of these is in the tables.
    "copy": LogSpread(0.4, 0.3, 0.25),
    "foreach": LogSpread(0.4, 0.3, 0.25),
    "random": LogSpread(0.4, 0.3, 0.3),
    "batch norm": LogSpread(0.4, 0.35, 0.3),
    "reduction": LogSpread(0.5, 0.5, 0.5),
    "scatter": LogSpread(0.6, 0.6, 0.6),
    INDEXING: LogSpread(0.6, 0.6, 0.6),
    DISTANCE: LogSpread(0.5, 0.5, 0.5),
    "scan": LogSpread(0.6, 0.6, 0.6),
    "sort": LogSpread(0.8, 0.8, 0.8),
    RECURRENT: LogSpread(0.6, 0.6, 0.6),  # in an open table of one GPU alone
    TRITON: LogSpread(0.6, 0.6, 0.6),
    UNKNOWN: LogSpread(0.8, 0.8, 0.8),
}
MAX_SHORT_TIME, MAX_MIDDLE_TIME = 20_000.0, 100_000.0
"""Nanoseconds up to which a kernel counts as short, and as middle."""

UNMEASURED_GPU = {"fp32": 0.12, "half": 0.06, "attention": 0.15, "memory": 0.08}
"""Extra uncertainty on a GPU that was not measured: the spread of shares in its class."""
UNMEASURED_START = 0.25
"""Extra uncertainty for short kernels on GPUs with no measured start-up time; an RTX PRO 6000 takes little
more than half of the usual one."""
UNSTEADY_CLOCK = 0.3
"""Extra uncertainty where a card may lower its clocks, depending on its cooling."""


def time_spread(work: DeviceWork, gpu: GpuRates, time: float | None = None) -> float:
    """Return the standard deviation of the natural logarithm of the true time over `device_time`'s, which can
    be passed as `time`.

    In a normal distribution four fifths of the true times are between ``time·exp(-1.28·spread)`` and
    ``time·exp(1.28·spread)``.
    """
    kind, field = spread_kind(work, gpu)
    time = device_time(work, gpu) if time is None else time
    spreads = SPREADS[kind]
    own = (
        spreads.short if time < MAX_SHORT_TIME else spreads.middle if time < MAX_MIDDLE_TIME else spreads.long
    )
    can = reach(gpu)
    more = 0.0 if field in can.measured_fields else UNMEASURED_GPU[field]
    if time < MAX_SHORT_TIME and "start" not in can.measured_fields:
        own = math.hypot(own, UNMEASURED_START)
    if field != "memory":
        more = max(
            more, can.unsteady, UNSTEADY_CLOCK if can.modest and field not in can.measured_fields else 0.0
        )
    return math.hypot(own, more)


PROVED_KINDS = frozenset({"products in fp32", "pointwise", "layer norm", "softmax", "gather"})
"""Kinds of which the measured whole models consist, if in fp32 and not short."""
UNPROVEN_SPREAD = 0.25
"""By how much the times of all other operators of a model may be off together: standard deviation of the
logarithm. At least four fifths of the profiles and published steps of such models, to which nothing was
fitted, lie in it (``benchmarks/sheets/intervals.md``, ``published.md``, ``timm_models.md``)."""


def unproven_spread(work: DeviceWork, dtype: str, gpu: GpuRates, time: float) -> float:
    """Return the extra uncertainty of operators that no whole model with known times consists of."""
    proved = (
        time >= MAX_SHORT_TIME
        and dtype in ("", "float32", "int64")
        and spread_kind(work, gpu)[0] in PROVED_KINDS
    )
    return 0.0 if proved else UNPROVEN_SPREAD


def spread_kind(work: DeviceWork, gpu: GpuRates) -> tuple[str, str]:
    """Return the row of `SPREADS`, and the share of the data sheet on which the time depends."""
    if work.family not in (MATMUL, CONVOLUTION, ATTENTION):
        return work.family, "memory"
    half = work.unit not in ("fp32", "fp64") and peak(gpu, work.unit) > gpu.fp32
    if work.family == ATTENTION:
        return "attention" if half and not work.backward_passes else "attention, else", "attention"
    name = "products" if work.family == MATMUL else "convolutions"
    return (f"{name} in 16 bits", "half") if half else (f"{name} in fp32", "fp32")
