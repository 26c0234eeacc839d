"""Estimate how long kernels take on a GPU that is not at hand.

A kernel takes a start-up time and then what its memory traffic and its arithmetic take, at what the GPU
sustains (`cards`). The constants are fitted to open tables of measured kernels by
``benchmarks/kernel_times.py``; ``benchmarks/sheets/kernel_times.md`` names the tables and their licences, and
says how far off estimates are on rows, and on GPUs, that were left out of the fit. What those tables do not
hold is marked below; its intervals are wide.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gapless.analyze.kernel_times.cards import Reach, reach
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
from gapless.analyze.kernel_times.products import FP32, HALF, Form, Rates, arithmetic, joined
from gapless.analyze.kernel_times.recurrent import SHARE, STEP, Chain
from gapless.model.programme import Gpu


class Traffic(NamedTuple):
    """Nanoseconds of start-up, the share of the sustained bandwidth that a family reaches where memory is
    what it waits for, and the bytes that a multiprocessor moves in a cycle at most."""

    start: float
    share: float
    each: float = math.inf


TRAFFIC: dict[str, Traffic] = {
    "pointwise": Traffic(1_800, 1.0),
    "layer norm": Traffic(4_000, 0.7),
    "softmax": Traffic(3_000, 0.75),
    # Below nothing open was found. By how they go about it: one pass at the speed of pointwise kernels, …
    "copy": Traffic(1_800, 1.0, 24.0),
    "foreach": Traffic(1_800, 1.0, 24.0),
    "random": Traffic(2_500, 1.0, 24.0),
    # … a tree of sums behind it, …
    "reduction": Traffic(3_500, 1.0, 16.0),
    "batch norm": Traffic(4_000, 1.0, 16.0),
    # … single elements all over memory, …
    "gather": Traffic(3_000, 0.7),
    "scatter": Traffic(3_000, 0.4),
    INDEXING: Traffic(3_000, 0.75),
    DISTANCE: Traffic(3_000, 0.5),
    # … or several passes that wait for each other.
    "scan": Traffic(4_000, 0.3),
    "sort": Traffic(5_000, 0.15),
    RECURRENT: Traffic(3_000, 0.5),
    TRITON: Traffic(3_000, 0.6),
    UNKNOWN: Traffic(3_000, 0.5),
}

NORM = (0.82, 0.82, 0.82, 0.67, 0.66, 0.66)
"""Layer norm's share of the sustained bandwidth in fp32 at 2⁸, 2⁹, … 2¹³ columns: long rows are read again
from memory."""
ROWS = 4.0
"""Rows of a layer norm that a multiprocessor has done in a thousand cycles at most, a block of threads for
each."""
SOFTMAX = (0.88, 0.86, 0.86, 0.75, 0.73, 0.60, 0.50)
"""The same of softmax, to 2¹⁴."""
NARROW = 0.85
"""The same in parts, in 16 bits, where the same arithmetic moves half the bytes."""
WIDE_BLOCKS = 4
"""Threads that a row of a layer norm takes where it is no whole vectors, in parts of the 128 of others: as
many fewer rows are on the way at once (ATen's ``layer_norm_kernel.cu``)."""
LOOKUP = 0.9
"""Elements of looked-up rows that a multiprocessor writes in a nanosecond."""
STRIDED = 1.4
"""Elements that a multiprocessor moves in a cycle where they are broadcast, or laid out otherwise: integer
arithmetic finds the place of each."""
CLOCK = 1_400
"""MHz of a GPU that does not tell."""
ACCESS = 320.0
"""Nanoseconds of an access of memory that the next one waits for: losses over 128 and over 512 rows in
profiles of an RTX 2080 Ti (``benchmarks/sheets/estimate.md``); what is in no cache takes longer."""
CACHED = 32.0
"""Bytes that a multiprocessor reads from, and writes to, the L2 cache in a nanosecond."""

ONE_BLOCK, ONE_BLOCK_CACHED = 24.0, 60.0
"""Bytes that a block of 512 threads, each of which waits for four elements at once, moves in a cycle: from
memory (22.8 µs for eight chunks in a profile of an A100), and from the L2 cache, which gives a multiprocessor
64 and answers in less than half the time."""

PAIR = 380.0
"""Cycles of a multiprocessor for each distance of two rows: a block of 256 threads finds its place by
dividing and adds up by way of shared memory, however few columns there are (ATen's ``DistanceKernel.cu``).
16 ms for four matrices of 31,200 by 58 on an RTX 5070 Ti: published with LibreYOLO."""

FAST = 2.9
"""TFLOP/s in 16 bits of a multiprocessor that multiplies faster than small tiles are read: an A100's. Those
of an RTX 3090 have less than a third."""
STARTS = {MATMUL: 3_800.0, CONVOLUTION: 5_000.0, ATTENTION: 6_000.0}
PRODUCT_CACHED = 13.0
"""The same of products, which read some of theirs more than once."""
DIRECT, WINOGRAD = 1.33, 1.52
"""Times of convolutions in parts of the products they are made of, directly and by Winograd's algorithm."""
TENSOR = 1.0
"""The same on tensor cores, forward; gradients, of long contractions that are split, take `DIRECT` there too.
Fitted, as `TAPS` and `ROWS` are, to one half of the models in ``benchmarks/sheets/timm_models.md``."""
SCORES, AHEAD = 6.2, 57.0
"""What a multiprocessor does at 1000 flops a nanosecond in the time that a softmax needs for a score, and in
which attention begins and ends a block of queries: products of a head's size, and keys."""
BLOCK = 128
"""Queries of one block of attention."""
TAKEN, PADDED_HEAD = 64, 32
"""Keys that such a block takes at once, at the least, and what sizes of heads are rounded up to."""
AGAIN = 0.75
"""What of its forward pass's speed attention's backward pass reaches (published by its authors)."""

CONVOLUTION_SPLIT = 3_000.0
"""Nanoseconds for adding the parts of a split contraction: gradients of weights go over all pixels."""
CONVERTED, WRITTEN = 3.0, 3
"""Tensor cores want channels last: what comes otherwise is written again before (pixels and weights) and
after, in kernels of their own."""
DEPTHWISE = 0.2
"""What of the peak in fp32 convolutions of single channels reach (no open data)."""
TAPS = 1.2
"""Products that a multiprocessor adds up in a cycle for the gradients of their weights (ATen's
``DepthwiseConv2d.cu``, with channels first)."""
TRITON_SHARE = 0.5
"""The same of products in kernels of one's own (no open data)."""

FURTHER = 0.7
"""Start-up of the second and later kernels of a call, in parts of the first's."""
ODD = 2.0
"""Elements that a multiprocessor moves in a cycle for such products."""
RAGGED = 2.0
"""Products in 16 bits whose rows do not begin at multiples of 16 bytes take so many times as long: their
elements come in parts, and the kernels that take such (``…_align1``) are those of the first tensor cores,
with half the products in an instruction."""


def device_time(work: Work, gpu: Gpu) -> float:
    """Nanoseconds that this work takes on `gpu`, with all its kernels."""
    can = reach(gpu)
    start = (STARTS.get(work.family) or TRAFFIC[work.family].start) * can.start
    if work.family == ATTENTION:
        time = _attention(work, gpu, can)
    elif work.family == CONVOLUTION:
        time = _convolution(work, gpu, can)
    elif work.family == MATMUL:
        time = _matmul(work, gpu, can)
    elif work.steps is not None:
        time = recurrent_time(work.steps, peak(gpu, work.unit), gpu)
    else:
        time = _traffic(work, gpu, can)
    least = work.flops / (peak(gpu, work.unit) * 1e3) if not work.winograd else 0.0  # fewer flops do as well
    return start * (1 + FURTHER * (work.kernels - 1)) + _first(work, gpu, can) + max(time, least)


def recurrent_time(of: Chain, top: float, gpu: Gpu) -> float:
    """Nanoseconds of a recurrent layer's steps and products, at `top` TFLOP/s."""
    rate = top * 1e3 * SHARE
    reading = of.step_bytes / (gpu.bandwidth * SHARE) if gpu.bandwidth else 0.0
    return of.steps * (STEP + max(of.step_flops / rate, reading)) + of.flops / rate


def peak(gpu: Gpu, unit: str) -> float:
    """TFLOP/s of `gpu` in that unit; units without hardware of their own fall back to fp32."""
    if unit == "fp64":
        return gpu.fp32 * reach(gpu).fp64
    return float(getattr(gpu, unit)) or gpu.fp32


def roof(work: Work, nbytes: float, gpu: Gpu) -> float:
    """Nanoseconds that this arithmetic and these bytes need at the data sheet's peaks."""
    memory = nbytes / gpu.bandwidth if gpu.bandwidth else 0.0
    return max(work.flops / (peak(gpu, work.unit) * 1e3) if work.flops else 0.0, memory)


# Memory -------------------------------------------------------------------------------------------


def _moving(nbytes: float, gpu: Gpu, can: Reach, cached: float, cold: float = 0.0) -> float:
    """Nanoseconds in which so many bytes are moved; what fits into the L2 cache comes from there, but for
    those that are `cold`."""
    if not gpu.bandwidth:
        return 0.0
    slow = gpu.bandwidth * can.memory
    fast = max(cached * gpu.multiprocessors, slow)
    warm = _warm(nbytes, gpu, cold)
    return nbytes * ((1 - warm) / slow + warm / fast)


def _warm(nbytes: float, gpu: Gpu, cold: float) -> float:
    """The share of these bytes, of which `cold` are in no cache, that comes from the L2 cache."""
    fits = 1 / (1 + (nbytes / gpu.l2_bytes) ** 2) if gpu.l2_bytes else 0.0
    return fits * (1 - cold / nbytes) if nbytes else 0.0


def _passing(nbytes: float, of: Traffic, size: int, gpu: Gpu, can: Reach) -> float:
    """Nanoseconds in which both memory and multiprocessors, whose arithmetic is the same for elements of
    fewer bytes, have gone through so many."""
    each = of.each * size / 4 * _cycles(gpu)
    return math.hypot(_moving(nbytes, gpu, can, CACHED) / of.share, nbytes / each)


def _first(work: Work, gpu: Gpu, can: Reach) -> float:
    """Nanoseconds of the preceding kernel, without its start-up."""
    moving = _passing(work.first, TRAFFIC["copy"], 4, gpu, can)
    return max(moving, work.first_strided / STRIDED / _cycles(gpu))


def _traffic(work: Work, gpu: Gpu, can: Reach) -> float:
    nbytes = work.moved - work.first
    if work.columns:
        time = _rows(work, nbytes, gpu, can)
    else:
        time = _passing(nbytes, TRAFFIC[work.family], 4 if work.ready else min(work.size, 4), gpu, can)
    if work.family == TRITON:
        time = max(time, work.flops / (peak(gpu, work.unit) * 1e3 * TRITON_SHARE))
    if work.blocks:
        time = max(time, _few_blocks(work, nbytes, gpu))
    time = max(time, work.pairs * PAIR / _cycles(gpu))
    picked = work.picked / LOOKUP / max(gpu.multiprocessors, 1)
    return max(time, picked + work.strided / STRIDED / _cycles(gpu), work.chained * ACCESS)


def _few_blocks(work: Work, nbytes: float, gpu: Gpu) -> float:
    """Nanoseconds in which so many blocks move these bytes and do their arithmetic in fp64; several share a
    multiprocessor where there are more of them."""
    processors = max(gpu.multiprocessors, 1)
    warm = _warm(nbytes, gpu, work.cold)
    each = nbytes * ((1 - warm) / ONE_BLOCK + warm / ONE_BLOCK_CACHED)
    moving = each / (min(work.blocks, 2 * processors) * (gpu.clock or CLOCK) / 1e3)
    doubles = work.doubles / (peak(gpu, "fp64") * 1e3 / 2) if gpu.fp32 else 0.0
    return max(moving, doubles * processors / min(work.blocks, processors))


def _rows(work: Work, nbytes: float, gpu: Gpu, can: Reach) -> float:
    """Nanoseconds of a norm or a softmax over rows."""
    norm = work.family == "layer norm"
    share = _by_columns(NORM if norm else SOFTMAX, work.columns) * can.norms
    share *= NARROW if work.size == 2 else 1.0
    blocks = 1
    if work.ragged and norm:
        # A pass for the moments, with a block of more threads for each row, and one that reads again.
        share, blocks = share * 2 / 3, WIDE_BLOCKS
    elif work.ragged:
        share /= RAGGED
    rows = work.rows * blocks / (ROWS / 1e3 * _cycles(gpu)) if norm else 0.0
    return max(_moving(nbytes, gpu, can, CACHED) / share, rows)


def _cycles(gpu: Gpu) -> float:
    """Cycles of all multiprocessors together per nanosecond."""
    return max(gpu.multiprocessors, 1) * (gpu.clock or CLOCK) / 1e3


def _by_columns(shares: tuple[float, ...], columns: int) -> float:
    """Interpolate in a table that begins at 2⁸ columns."""
    place = min(max(math.log2(columns) - 8, 0.0), len(shares) - 1.0)
    low = min(int(place), len(shares) - 2)
    return shares[low] + (shares[low + 1] - shares[low]) * (place - low)


# Products -----------------------------------------------------------------------------------------


def _rates(work: Work, gpu: Gpu, can: Reach) -> tuple[Form, Rates]:
    top = peak(gpu, work.unit)
    narrow = work.unit not in ("fp32", "fp64") and top > gpu.fp32
    share, processors = can.half if narrow else can.fp32, max(gpu.multiprocessors, 1)
    # Small tiles are as good as large ones where multiplying takes longer than reading their factors.
    form = HALF._replace(edge=HALF.edge * min(top / processors / FAST, 1.0)) if narrow else FP32
    return form, Rates(top * 1e3 * share, processors, gpu.bandwidth * can.memory or math.inf, can.one_tile)


def _product_memory(work: Work, nbytes: float, gpu: Gpu, can: Reach, form: Form) -> float:
    time = _moving(nbytes, gpu, can, PRODUCT_CACHED, work.cold) / form.memory
    if not work.ragged or form.fp32:
        return time
    return max(time, nbytes / work.size / (ODD * _cycles(gpu)))


def _matmul(work: Work, gpu: Gpu, can: Reach) -> float:
    form, rates = _rates(work, gpu, can)
    memory = _product_memory(work, work.moved - work.first, gpu, can, form)
    if any(1 in product[1:3] for product in work.products):
        return memory  # a matrix by a vector
    again = RAGGED if work.ragged and not form.fp32 else 1.0
    return joined(again * sum(arithmetic(product, form, rates) for product in work.products), memory, form)


def _convolution(work: Work, gpu: Gpu, can: Reach) -> float:
    form, rates = _rates(work, gpu, can)
    form = form._replace(split=CONVOLUTION_SPLIT)
    memory = _product_memory(work, work.moved, gpu, can, form)
    if work.depthwise:
        return joined(_depthwise(work, gpu, can), memory, form)
    products_ = work.products
    # What is added to each channel is added behind it, in a kernel of its own (ATen's `ConvShared.cpp`).
    after = max(
        _moving(2 * work.size * work.strided, gpu, can, CACHED), work.strided / STRIDED / _cycles(gpu)
    )
    if not form.fp32:
        memory *= 1.0 if work.ready else CONVERTED
        products_ = tuple(
            (b, m, n, max(work.channels, work.least) * (k // work.channels) if work.channels else k)
            for b, m, n, k in products_
        )
        after += 0.0 if work.ready else FURTHER * STARTS[CONVOLUTION] * can.start * WRITTEN
    direct = DIRECT if form.fp32 or work.backward else TENSOR
    time = after + joined(
        direct * sum(arithmetic(product, form, rates) for product in products_), memory, form
    )
    if not form.fp32 and 0 < work.channels < work.least:
        # So few are multiplied as fast by kernels that do without tensor cores and take them as they come.
        return min(time, _convolution(work._replace(unit="fp32", winograd=()), gpu, can))
    if not work.winograd or not form.fp32:
        return time
    transforms = sum(work.size * b * (m * k + k * n + m * n) for b, m, n, k in work.winograd)
    moving = _moving(transforms, gpu, can, 0.0)
    fast = WINOGRAD * sum(arithmetic(product, form, rates) for product in work.winograd)
    return min(time, after + fast + moving)


def _depthwise(work: Work, gpu: Gpu, can: Reach) -> float:
    """Nanoseconds of the arithmetic of convolutions of single channels."""
    time = work.flops / (gpu.fp32 * 1e3 * can.fp32 * DEPTHWISE)
    if work.backward < 2 or work.ready:
        return time
    # The gradient of each weight is a block's, which goes over all pixels and works out the place of each.
    taps = work.flops / 2 / work.backward
    return time / 2 + taps / (TAPS * _cycles(gpu))


def _attention(work: Work, gpu: Gpu, can: Reach) -> float:
    """Nanoseconds of attention by blocks of queries, each with start, end and a softmax of its scores."""
    if not work.products:
        return _moving(work.moved, gpu, can, CACHED)
    heads, queries, keys, size = work.products[0]
    size = -(-size // PADDED_HEAD) * PADDED_HEAD
    top = peak(gpu, work.unit) * 1e3
    processors = max(gpu.multiprocessors, 1)
    each = top / processors / 1e3  # flops in a picosecond
    blocks = heads * -(-queries // BLOCK)
    waves = max(blocks / processors, 1.0)
    keys_seen = keys / 2 + BLOCK / 2 if work.causal else -(-keys // TAKEN) * TAKEN
    flops = 4.0 * BLOCK * (size * (keys_seen + AHEAD * each) + SCORES * each * keys_seen)
    passes = work.backward / AGAIN if work.backward else 1.0
    time = waves * processors * flops * passes / (top * can.attention)
    return max(time, _moving(work.moved, gpu, can, CACHED))
