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
from gapless.analyze.kernel_times.device_work import DeviceWork
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
from gapless.analyze.kernel_times.products import FP32, HALF, Rates, TileCosts, arithmetic_time, overlap_times
from gapless.analyze.kernel_times.recurrent import PEAK_SHARE, STEP_NS, RecurrentSteps
from gapless.model.programme import GpuRates


class FamilyTraffic(NamedTuple):
    """How fast the kernels of a family of operators move memory."""

    start: float
    """Nanoseconds to start a kernel."""
    bandwidth_share: float
    """Share of the GPU's sustained bandwidth that memory-bound kernels reach."""
    bytes_per_cycle: float = math.inf
    """Bytes that a multiprocessor moves per cycle at most."""


TRAFFIC: dict[str, FamilyTraffic] = {
    "pointwise": FamilyTraffic(1_800, 1.0),
    "layer norm": FamilyTraffic(4_000, 0.7),
    "softmax": FamilyTraffic(3_000, 0.75),
    # No open data is known for those below. By their algorithm: one pass at the speed of pointwise kernels, …
    "copy": FamilyTraffic(1_800, 1.0, 24.0),
    "foreach": FamilyTraffic(1_800, 1.0, 24.0),
    "random": FamilyTraffic(2_500, 1.0, 24.0),
    # … a tree of sums behind it, …
    "reduction": FamilyTraffic(3_500, 1.0, 16.0),
    "batch norm": FamilyTraffic(4_000, 1.0, 16.0),
    # … scattered single elements, …
    "gather": FamilyTraffic(3_000, 0.7),
    "scatter": FamilyTraffic(3_000, 0.4),
    INDEXING: FamilyTraffic(3_000, 0.75),
    DISTANCE: FamilyTraffic(3_000, 0.5),
    # … or several passes that wait for each other.
    "scan": FamilyTraffic(4_000, 0.3),
    "sort": FamilyTraffic(5_000, 0.15),
    RECURRENT: FamilyTraffic(3_000, 0.5),
    TRITON: FamilyTraffic(3_000, 0.6),
    UNKNOWN: FamilyTraffic(3_000, 0.5),
}

NORM_SHARES = (0.82, 0.82, 0.82, 0.67, 0.66, 0.66)
"""Layer norm's share of the sustained bandwidth in fp32 at rows of 2⁸, 2⁹, … 2¹³ elements: long rows are read
twice from memory."""
NORM_ROWS_PER_KILOCYCLE = 4.0
"""Rows of a layer norm, of a block each, that a multiprocessor finishes in a thousand cycles at most."""
SOFTMAX_SHARES = (0.88, 0.86, 0.86, 0.75, 0.73, 0.60, 0.50)
"""Softmax's share of the sustained bandwidth, likewise, up to 2¹⁴ elements."""
HALF_PRECISION_FACTOR = 0.85
"""Factor on these shares in 16 bits, where the same arithmetic moves half the bytes."""
MISALIGNED_ROW_THREADS = 4
"""Threads of a layer norm's row that is not a whole number of vectors, relative to the usual 128: so many
times fewer rows run at once (ATen's ``layer_norm_kernel.cu``)."""
LOOKUPS_PER_NS = 0.9
"""Elements of looked-up rows that a multiprocessor writes per nanosecond."""
STRIDED_PER_CYCLE = 1.4
"""Elements that a multiprocessor moves per cycle if they are broadcast or not contiguous: integer arithmetic
computes the address of each."""
DEFAULT_CLOCK_MHZ = 1_400
"""Assumed for GPUs whose clock is unknown."""
ACCESS_NS = 320.0
"""Latency of a memory access that the next one waits for: losses over 128 and over 512 rows in profiles of an
RTX 2080 Ti (``benchmarks/sheets/estimate.md``); uncached accesses take longer."""
CACHE_BYTES_PER_NS = 32.0
"""Bytes that a multiprocessor reads from and writes to the L2 cache per nanosecond."""

BATCH_NORM_BYTES_PER_CYCLE = {False: 11.2, True: 7.3}
"""Bytes of fp32 that a block moves per cycle in cuDNN's batch norm with channels first, forward and (True)
backward: a channel has one block, which goes over its data twice. Equal in profiles of a ResNet-50 on a V100
and of a ResNet-18 on an H200."""

BLOCK_BYTES_PER_CYCLE, BLOCK_CACHE_BYTES_PER_CYCLE = 24.0, 60.0
"""Bytes that a block of 512 threads moves per cycle, each thread waiting for four elements at once: from
memory (22.8 µs for eight chunks in a profile of an A100), and from the L2 cache, which delivers at most 64 to
a multiprocessor and answers in less than half the time."""

CYCLES_PER_DISTANCE = 380.0
"""Cycles of a multiprocessor for each distance of two rows: a block of 256 threads divides to find its rows
and adds up in shared memory, however short the rows are (ATen's ``DistanceKernel.cu``). LibreYOLO publishes
16 ms for four matrices of 31,200 by 58 on an RTX 5070 Ti."""

FAST_TFLOPS_PER_PROCESSOR = 2.9
"""TFLOP/s in 16 bits from which on a multiprocessor multiplies faster than it reads small tiles: an A100's.
An RTX 3090's has less than a third."""
PRODUCT_START_NS = {MATMUL: 3_800.0, CONVOLUTION: 5_000.0, ATTENTION: 6_000.0}
"""Nanoseconds to start a kernel of these families. Fitted."""
PRODUCT_CACHE_BYTES_PER_NS = 13.0
"""`CACHE_BYTES_PER_NS` of products, which read some bytes more than once."""
DIRECT_FACTOR, WINOGRAD_FACTOR = 1.33, 1.52
"""Time of convolutions relative to their matrix products, directly and by Winograd's algorithm."""
TENSOR_CORE_FACTOR = 1.0
"""The same on tensor cores, forward; gradients, whose long contractions are split, take `DIRECT_FACTOR`.
Fitted, like `WEIGHT_GRADIENTS_PER_CYCLE` and `NORM_ROWS_PER_KILOCYCLE`, to half of the models in
``benchmarks/sheets/timm_models.md``."""
SOFTMAX_HEAD_ELEMENTS, BLOCK_OVERHEAD_KEYS = 6.2, 57.0
"""Costs of attention on a multiprocessor of 1000 flops per nanosecond: the softmax of a score takes as long
as so many more elements of a head, starting and ending a block of queries as long as so many more keys.
Fitted."""
QUERIES_PER_BLOCK = 128
"""Queries of one block of attention."""
MIN_KEYS_PER_STEP, HEAD_SIZE_MULTIPLE = 64, 32
"""Keys that such a block handles at once, at least, and the multiple to which head sizes are rounded up."""
BACKWARD_SPEED_SHARE = 0.75
"""Flop rate of attention's backward pass relative to the forward pass (published by its authors)."""

CONVOLUTION_SPLIT_NS = 3_000.0
"""Nanoseconds for adding the parts of a split contraction: gradients of weights go over all pixels."""
LAYOUT_TRAFFIC_FACTOR, LAYOUT_KERNELS = 3.0, 3
"""Traffic and kernels of a convolution with channels first on tensor cores, which need channels last: pixels
and weights are copied before, and the result after."""
DEPTHWISE_SHARE = 0.2
"""Share of the fp32 peak that depthwise convolutions reach (assumed: no open data)."""
WEIGHT_GRADIENTS_PER_CYCLE = 1.2
"""Products that a multiprocessor sums per cycle for the weight gradients of depthwise convolutions (ATen's
``DepthwiseConv2d.cu``, with channels first)."""
TRITON_SHARE = 0.5
"""Share of the peak that products in Triton kernels reach (assumed: no open data)."""

LATER_START_SHARE = 0.7
"""Start-up time of the second and later kernels of a call relative to the first's."""
MISALIGNED_PER_CYCLE = 2.0
"""Elements that a multiprocessor moves per cycle for products with misaligned rows."""
MISALIGNED_FACTOR = 2.0
"""Products in 16 bits whose rows do not begin at multiples of 16 bytes take so many times as long: their
kernels (``…_align1``) load narrower pieces and use the instructions of the first tensor cores, with half the
products in each."""
MISALIGNED_FAST_FACTOR = 6.0
"""The same where a multiprocessor has more than twice `FAST_TFLOPS_PER_PROCESSOR`, which only instructions
reach that these kernels do not know: 6.9 for a vocabulary of 50,257 in a profile of an H200, 5 in two of
H100s."""


def device_time(work: DeviceWork, gpu: GpuRates) -> float:
    """Return the nanoseconds that `work` takes on `gpu`, in all its kernels."""
    can = reach(gpu)
    start = (PRODUCT_START_NS.get(work.family) or TRAFFIC[work.family].start) * can.start
    if work.family == ATTENTION:
        time = _attention_time(work, gpu, can)
    elif work.family == CONVOLUTION:
        time = _convolution_time(work, gpu, can)
    elif work.family == MATMUL:
        time = _matmul_time(work, gpu, can)
    elif work.recurrence is not None:
        time = recurrent_time(work.recurrence, peak(gpu, work.unit), gpu)
    else:
        time = _traffic_time(work, gpu, can)
    # Winograd's algorithm needs fewer flops.
    least = 0.0 if work.winograd_products else work.flops / (peak(gpu, work.unit) * 1e3)
    return (
        start * (1 + LATER_START_SHARE * (work.kernels - 1))
        + _first_kernel_time(work, gpu, can)
        + max(time, least)
    )


def recurrent_time(recurrence: RecurrentSteps, top: float, gpu: GpuRates) -> float:
    """Return the nanoseconds of a recurrent layer's steps and products, at `top` TFLOP/s."""
    rate = top * 1e3 * PEAK_SHARE
    reading = recurrence.step_bytes / (gpu.bandwidth * PEAK_SHARE) if gpu.bandwidth else 0.0
    step = STEP_NS + max(recurrence.step_flops / rate, reading)
    return recurrence.steps * step + recurrence.flops / rate


def peak(gpu: GpuRates, unit: str) -> float:
    """Return the TFLOP/s of `gpu` in `unit`; in fp32 if it has no hardware for it."""
    if unit == "fp64":
        return gpu.fp32 * reach(gpu).fp64
    return float(getattr(gpu, unit)) or gpu.fp32


def roof(work: DeviceWork, nbytes: float, gpu: GpuRates) -> float:
    """Return the nanoseconds of the flops of `work` and `nbytes` of traffic at the data sheet's peaks."""
    memory = nbytes / gpu.bandwidth if gpu.bandwidth else 0.0
    return max(work.flops / (peak(gpu, work.unit) * 1e3) if work.flops else 0.0, memory)


# Memory -------------------------------------------------------------------------------------------


def _memory_time(nbytes: float, gpu: GpuRates, can: Reach, cached: float, cold: float = 0.0) -> float:
    """Return the nanoseconds to move `nbytes`, of which `cold` are in no cache.

    What fits into the L2 cache comes from there, at `cached` bytes per nanosecond and multiprocessor.
    """
    if not gpu.bandwidth:
        return 0.0
    slow = gpu.bandwidth * can.memory
    fast = max(cached * gpu.multiprocessors, slow)
    warm = _cached_share(nbytes, gpu, cold)
    return nbytes * ((1 - warm) / slow + warm / fast)


def _cached_share(nbytes: float, gpu: GpuRates, cold: float) -> float:
    """Return the share of `nbytes` that comes from the L2 cache; `cold` bytes do not."""
    fits = 1 / (1 + (nbytes / gpu.l2_bytes) ** 2) if gpu.l2_bytes else 0.0
    return fits * (1 - cold / nbytes) if nbytes else 0.0


def _pass_time(
    nbytes: float, of: FamilyTraffic, size: int, gpu: GpuRates, can: Reach, busy: float = 1.0
) -> float:
    """Return the nanoseconds of a pass over `nbytes`, in elements of `size` bytes, by kernels of a family.

    Memory and multiprocessors both take time; smaller elements take as much arithmetic as larger ones. `busy`
    is the share of what the multiprocessors can do that the kernel's blocks keep busy.
    """
    each = of.bytes_per_cycle * busy * size / 4 * _cycles_per_ns(gpu)
    return math.hypot(_memory_time(nbytes, gpu, can, CACHE_BYTES_PER_NS) / of.bandwidth_share, nbytes / each)


def _first_kernel_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    """Return the nanoseconds of the preceding kernel, without its start-up."""
    moving = _pass_time(work.first_bytes, TRAFFIC["copy"], 4, gpu, can)
    return max(moving, work.first_strided / STRIDED_PER_CYCLE / _cycles_per_ns(gpu))


def _traffic_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    nbytes = work.bytes_moved - work.first_bytes
    if work.row_length:
        time = _rows_time(work, nbytes, gpu, can)
    else:
        traffic = TRAFFIC[work.family]
        busy = 1.0
        if work.channel_blocks:
            rate = work.channel_blocks * BATCH_NORM_BYTES_PER_CYCLE[work.backward_passes > 0]
            busy = min(rate / max(gpu.multiprocessors, 1) / traffic.bytes_per_cycle, 1.0)
        size = 4 if work.has_native_layout else min(work.element_bytes, 4)
        time = _pass_time(nbytes, traffic, size, gpu, can, busy)
    if work.family == TRITON:
        time = max(time, work.flops / (peak(gpu, work.unit) * 1e3 * TRITON_SHARE))
    if work.blocks:
        time = max(time, _few_blocks_time(work, nbytes, gpu))
    time = max(time, work.distances * CYCLES_PER_DISTANCE / _cycles_per_ns(gpu))
    picked = work.lookups / LOOKUPS_PER_NS / max(gpu.multiprocessors, 1)
    return max(
        time,
        picked + work.strided_elements / STRIDED_PER_CYCLE / _cycles_per_ns(gpu),
        work.chained_accesses * ACCESS_NS,
    )


def _few_blocks_time(work: DeviceWork, nbytes: float, gpu: GpuRates) -> float:
    """Return the nanoseconds in which the blocks of `work` move `nbytes` and compute in fp64.

    Several blocks share a multiprocessor if there are more of them.
    """
    processors = max(gpu.multiprocessors, 1)
    warm = _cached_share(nbytes, gpu, work.cold_bytes)
    each = nbytes * ((1 - warm) / BLOCK_BYTES_PER_CYCLE + warm / BLOCK_CACHE_BYTES_PER_CYCLE)
    moving = each / (min(work.blocks, 2 * processors) * (gpu.clock or DEFAULT_CLOCK_MHZ) / 1e3)
    doubles = work.fp64_instructions / (peak(gpu, "fp64") * 1e3 / 2) if gpu.fp32 else 0.0
    return max(moving, doubles * processors / min(work.blocks, processors))


def _rows_time(work: DeviceWork, nbytes: float, gpu: GpuRates, can: Reach) -> float:
    """Return the nanoseconds of a norm or a softmax over rows."""
    norm = work.family == "layer norm"
    share = _interpolate_by_length(NORM_SHARES if norm else SOFTMAX_SHARES, work.row_length) * can.norms
    share *= HALF_PRECISION_FACTOR if work.element_bytes == 2 else 1.0
    blocks = 1
    if work.is_misaligned and norm:
        # A pass for the moments, with more threads per row, and one that reads again.
        share, blocks = share * 2 / 3, MISALIGNED_ROW_THREADS
    elif work.is_misaligned:
        share /= MISALIGNED_FACTOR
    rows = work.rows * blocks / (NORM_ROWS_PER_KILOCYCLE / 1e3 * _cycles_per_ns(gpu)) if norm else 0.0
    return max(_memory_time(nbytes, gpu, can, CACHE_BYTES_PER_NS) / share, rows)


def _cycles_per_ns(gpu: GpuRates) -> float:
    """Return the cycles per nanosecond of all multiprocessors together."""
    return max(gpu.multiprocessors, 1) * (gpu.clock or DEFAULT_CLOCK_MHZ) / 1e3


def _interpolate_by_length(shares: tuple[float, ...], columns: int) -> float:
    """Interpolate in a table for rows of 2⁸, 2⁹, … elements."""
    place = min(max(math.log2(columns) - 8, 0.0), len(shares) - 1.0)
    low = min(int(place), len(shares) - 2)
    return shares[low] + (shares[low + 1] - shares[low]) * (place - low)


# Products -----------------------------------------------------------------------------------------


def _rates(work: DeviceWork, gpu: GpuRates, can: Reach) -> tuple[TileCosts, Rates]:
    top = peak(gpu, work.unit)
    narrow = work.unit not in ("fp32", "fp64") and top > gpu.fp32
    share, processors = can.half if narrow else can.fp32, max(gpu.multiprocessors, 1)
    # Small tiles are as good as large ones where multiplying takes longer than reading their factors.
    form = (
        HALF._replace(
            half_speed_edge=HALF.half_speed_edge * min(top / processors / FAST_TFLOPS_PER_PROCESSOR, 1.0)
        )
        if narrow
        else FP32
    )
    return form, Rates(top * 1e3 * share, processors, gpu.bandwidth * can.memory or math.inf, can.one_tile)


def _product_memory_time(
    work: DeviceWork, nbytes: float, gpu: GpuRates, can: Reach, form: TileCosts
) -> float:
    time = _memory_time(nbytes, gpu, can, PRODUCT_CACHE_BYTES_PER_NS, work.cold_bytes) / form.memory
    if not work.is_misaligned or form.fp32:
        return time
    return max(time, nbytes / work.element_bytes / (MISALIGNED_PER_CYCLE * _cycles_per_ns(gpu)))


def _matmul_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    form, rates = _rates(work, gpu, can)
    memory = _product_memory_time(work, work.bytes_moved - work.first_bytes, gpu, can, form)
    if any(1 in product[1:3] for product in work.products):
        return memory  # a matrix by a vector
    again = _misaligned_factor(work, gpu) if work.is_misaligned and not form.fp32 else 1.0
    return overlap_times(
        again * sum(arithmetic_time(product, form, rates) for product in work.products), memory, form
    )


def _misaligned_factor(work: DeviceWork, gpu: GpuRates) -> float:
    """Return how many times as long products in 16 bits with misaligned rows take."""
    speed = peak(gpu, work.unit) / max(gpu.multiprocessors, 1)
    return MISALIGNED_FAST_FACTOR if speed > 2 * FAST_TFLOPS_PER_PROCESSOR else MISALIGNED_FACTOR


def _convolution_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    form, rates = _rates(work, gpu, can)
    form = form._replace(split_ns=CONVOLUTION_SPLIT_NS)
    memory = _product_memory_time(work, work.bytes_moved, gpu, can, form)
    if work.depthwise:
        return overlap_times(_depthwise_time(work, gpu, can), memory, form)
    products_ = work.products
    # The bias is added afterwards, in a kernel of its own (ATen's `ConvShared.cpp`).
    after = max(
        _memory_time(2 * work.element_bytes * work.strided_elements, gpu, can, CACHE_BYTES_PER_NS),
        work.strided_elements / STRIDED_PER_CYCLE / _cycles_per_ns(gpu),
    )
    if not form.fp32:
        memory *= 1.0 if work.has_native_layout else LAYOUT_TRAFFIC_FACTOR
        products_ = tuple(
            (b, m, n, max(work.channels, work.min_channels) * (k // work.channels) if work.channels else k)
            for b, m, n, k in products_
        )
        after += (
            0.0
            if work.has_native_layout
            else LATER_START_SHARE * PRODUCT_START_NS[CONVOLUTION] * can.start * LAYOUT_KERNELS
        )
    direct = DIRECT_FACTOR if form.fp32 or work.backward_passes else TENSOR_CORE_FACTOR
    time = after + overlap_times(
        direct * sum(arithmetic_time(product, form, rates) for product in products_), memory, form
    )
    if not form.fp32 and 0 < work.channels < work.min_channels:
        # Kernels without tensor cores, which need no padding and no layout, are as fast for so few channels.
        return min(time, _convolution_time(work._replace(unit="fp32", winograd_products=()), gpu, can))
    if not work.winograd_products or not form.fp32:
        return time
    transforms = sum(
        work.element_bytes * b * (m * k + k * n + m * n) for b, m, n, k in work.winograd_products
    )
    moving = _memory_time(transforms, gpu, can, 0.0)
    fast = WINOGRAD_FACTOR * sum(arithmetic_time(product, form, rates) for product in work.winograd_products)
    return min(time, after + fast + moving)


def _depthwise_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    """Return the nanoseconds of the arithmetic of depthwise convolutions."""
    time = work.flops / (gpu.fp32 * 1e3 * can.fp32 * DEPTHWISE_SHARE)
    if work.backward_passes < 2 or work.has_native_layout:
        return time
    # Each weight's gradient has a block, which goes over all pixels and computes the address of each.
    taps = work.flops / 2 / work.backward_passes
    return time / 2 + taps / (WEIGHT_GRADIENTS_PER_CYCLE * _cycles_per_ns(gpu))


def _attention_time(work: DeviceWork, gpu: GpuRates, can: Reach) -> float:
    """Return the nanoseconds of attention in blocks of queries, each with start, end and softmax."""
    if not work.products:
        return _memory_time(work.bytes_moved, gpu, can, CACHE_BYTES_PER_NS)
    heads, queries, keys, size = work.products[0]
    size = -(-size // HEAD_SIZE_MULTIPLE) * HEAD_SIZE_MULTIPLE
    top = peak(gpu, work.unit) * 1e3
    processors = max(gpu.multiprocessors, 1)
    each = top / processors / 1e3  # flops in a picosecond
    blocks = heads * -(-queries // QUERIES_PER_BLOCK)
    waves = max(blocks / processors, 1.0)
    keys_seen = (
        keys / 2 + QUERIES_PER_BLOCK / 2 if work.causal else -(-keys // MIN_KEYS_PER_STEP) * MIN_KEYS_PER_STEP
    )
    flops = (
        4.0
        * QUERIES_PER_BLOCK
        * (size * (keys_seen + BLOCK_OVERHEAD_KEYS * each) + SOFTMAX_HEAD_ELEMENTS * each * keys_seen)
    )
    passes = work.backward_passes / BACKWARD_SPEED_SHARE if work.backward_passes else 1.0
    time = waves * processors * flops * passes / (top * can.attention)
    return max(time, _memory_time(work.bytes_moved, gpu, can, CACHE_BYTES_PER_NS))
