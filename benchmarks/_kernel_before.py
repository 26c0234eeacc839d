"""What estimates were before kernel times were fitted to open tables: kept for comparison with them alone."""

from __future__ import annotations

import math

from gapless.analyze.kernel_times.device_work import DeviceWork
from gapless.analyze.kernel_times.durations import peak
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.programme import Entry, GpuRates

# Nanoseconds of start-up, shares of the data sheet's memory bandwidth and arithmetic.
SHARES = {
    "matmul": (6_000, 0.44, 0.94), "convolution": (6_000, 0.19, 0.73), "attention": (6_000, 0.31, 0.5),
    "layer norm": (3_000, 0.39, 1), "batch norm": (6_000, 0.73, 1), "softmax": (2_000, 0.5, 1),
    "reduction": (4_000, 0.44, 1), "scan": (6_000, 0.1, 1), "gather": (3_000, 0.24, 1),
    "copy": (3_000, 0.5, 1),
    "pointwise": (1_500, 0.83, 1), "sort": (6_000, 0.1, 1), "scatter": (3_000, 0.24, 1),
    "random": (3_000, 0.5, 1), "foreach": (3_000, 0.83, 1), "triton": (3_000, 0.5, 0.5),
    "unknown": (3_000, 0.4, 1),
}  # fmt: skip


def kernel_time_before(entry: Entry, gpu: GpuRates) -> float:
    """Return nanoseconds as version 0.1 of the formulas estimated them."""
    request = work(entry)
    start, memory, arithmetic = SHARES[request.family]
    start *= 1 + 0.7 * (request.kernels - 1)
    # Version 0.1 counted elements of backward passes once.
    moving = (entry.reads + entry.writes if entry.backward else request.bytes_moved) / (
        gpu.bandwidth * memory
    )
    if _is_misaligned(entry, request):
        moving *= 2.0
    if not request.flops:
        return start + moving
    flops = request.flops / (2.25 if request.winograd_products else 1.0)
    return start + max(
        moving, flops / (peak(gpu, request.unit) * 1e3 * arithmetic) / _occupancy(request, gpu)
    )


def _is_misaligned(entry: Entry, request: DeviceWork) -> bool:
    if request.family not in ("matmul", "softmax"):
        return False
    return any(
        len(shape) > 1 and shape[-1] > 64 and shape[-1] * request.element_bytes % 16 for shape in entry.inputs
    )


def _occupancy(request: DeviceWork, gpu: GpuRates) -> float:
    tiles = sum(b * -(-m // 128) * -(-n // 128) for b, m, n, _ in request.products)
    if request.family == "attention":
        tiles = sum(heads * -(-queries // 128) for heads, queries, _, _ in request.products)
    if not tiles or not gpu.multiprocessors:
        return 1.0
    return math.sqrt(tiles / (math.ceil(tiles / gpu.multiprocessors) * gpu.multiprocessors))
