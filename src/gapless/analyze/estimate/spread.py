"""How far off an estimate of a kernel's time may be.

By one rule (``benchmarks/_kernel_spread.py``): how far kernels that were kept from the fit are off within a
GPU, and how far GPUs differ, as the sample of them tells it for the next one.
``benchmarks/sheets/kernel_times.md`` has both, and how many kernels lie in the interval, by family and GPU.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.analyze.kernel_times.cards import reach
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
from gapless.analyze.kernel_times.operator_work import Work
from gapless.model.programme import Gpu


class Spread(NamedTuple):
    """Standard deviations of the logarithm of true over estimated: below 20 µs, below 100 µs, and above."""

    short: float
    middle: float
    long: float


SPREADS: dict[str, Spread] = {
    "products in fp32": Spread(0.4, 0.39, 0.11),  # no short ones in the tables; middle ones of unsteady cards
    "products in 16 bits": Spread(0.26, 0.15, 0.11),
    "convolutions in fp32": Spread(0.7, 0.7, 0.4),
    "convolutions in 16 bits": Spread(0.7, 0.7, 0.5),  # not in the tables
    "attention": Spread(0.41, 0.55, 0.24),
    "attention, else": Spread(0.5, 0.55, 0.4),  # backward, or not in 16 bits: not in the tables
    "pointwise": Spread(0.35, 0.12, 0.06),
    # As GPUs differ whose norms have no share of their own.
    "layer norm": Spread(0.28, 0.28, 0.19),
    "softmax": Spread(0.3, 0.3, 0.25),
    "gather": Spread(0.28, 0.26, 0.27),
    # None of these is in the tables.
    "copy": Spread(0.4, 0.3, 0.25),
    "foreach": Spread(0.4, 0.3, 0.25),
    "random": Spread(0.4, 0.3, 0.3),
    "batch norm": Spread(0.4, 0.35, 0.3),
    "reduction": Spread(0.5, 0.5, 0.5),
    "scatter": Spread(0.6, 0.6, 0.6),
    INDEXING: Spread(0.6, 0.6, 0.6),
    DISTANCE: Spread(0.5, 0.5, 0.5),
    "scan": Spread(0.6, 0.6, 0.6),
    "sort": Spread(0.8, 0.8, 0.8),
    RECURRENT: Spread(0.6, 0.6, 0.6),  # in an open table of one GPU alone
    TRITON: Spread(0.6, 0.6, 0.6),
    UNKNOWN: Spread(0.8, 0.8, 0.8),
}
SHORT, MIDDLE = 20_000.0, 100_000.0
"""Nanoseconds at which a spread ends."""

UNSEEN = {"fp32": 0.12, "half": 0.06, "attention": 0.15, "memory": 0.08}
"""What comes to it on a GPU that was not measured: by how much its class's shares differ."""
START = 0.25
"""What comes to it for short kernels where nobody measured how long kernels take to start, which an RTX PRO
6000 has done in little more than half the time."""
MODEST = 0.3
"""The same where a card may lower its clocks, more with each degree of its cooling."""


def spread(work: Work, gpu: Gpu, time: float | None = None) -> float:
    """The standard deviation of the natural logarithm of the true time over `device_time`'s, which is `time`
    where somebody has it.

    With the normal distribution four fifths of the true times are between ``time·exp(-1.28·spread)`` and
    ``time·exp(1.28·spread)``.
    """
    kind, field = kind_of(work, gpu)
    time = device_time(work, gpu) if time is None else time
    each = SPREADS[kind]
    own = each.short if time < SHORT else each.middle if time < MIDDLE else each.long
    can = reach(gpu)
    more = 0.0 if field in can.known else UNSEEN[field]
    if time < SHORT and "start" not in can.known:
        own = math.hypot(own, START)
    if field != "memory":
        more = max(more, can.unsteady, MODEST if can.modest and field not in can.known else 0.0)
    return math.hypot(own, more)


PROVED = frozenset({"products in fp32", "pointwise", "layer norm", "softmax", "gather"})
"""What the whole models consist of that were measured: in fp32, and in kernels that are not `SHORT`."""
UNPROVEN = 0.25
"""By how much the time of all other operators of a model may be off, together: standard deviation of the
logarithm. Of profiles and published steps of such models, to which nothing was fitted, at least four fifths
lie in it (``benchmarks/sheets/intervals.md``, ``published.md``, ``timm_models.md``)."""


def unproven(work: Work, dtype: str, gpu: Gpu, time: float) -> float:
    """What comes to `spread` for operators that no whole model with known times consists of."""
    proved = time >= SHORT and dtype in ("", "float32", "int64") and kind_of(work, gpu)[0] in PROVED
    return 0.0 if proved else UNPROVEN


def kind_of(work: Work, gpu: Gpu) -> tuple[str, str]:
    """The row of `SPREADS`, and the share of the data sheet that the time goes by."""
    if work.family not in (MATMUL, CONVOLUTION, ATTENTION):
        return work.family, "memory"
    half = work.unit not in ("fp32", "fp64") and peak(gpu, work.unit) > gpu.fp32
    if work.family == ATTENTION:
        return "attention" if half and not work.backward else "attention, else", "attention"
    name = "products" if work.family == MATMUL else "convolutions"
    return (f"{name} in 16 bits", "half") if half else (f"{name} in fp32", "fp32")
