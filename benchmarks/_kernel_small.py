"""What kernels take that do next to nothing, and those that move elements one by one."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _kernel_tables import GPUS
from _operators import Sample

from gapless.analyze.kernel_times.families import MATMUL
from gapless.analyze.kernel_times.operator_work import work
from gapless.trace.read import read
from gapless.trace.timeline import Timeline, WorkKind

KINDS = {
    "fills": "FillFunctor",
    "elementwise, in vectors": r"^void at::native::vectorized_elementwise",
    "elementwise, one by one": r"^void at::native::(\(anonymous .*\)::)?(unrolled_)?elementwise_kernel",
    "reductions": r"reduce_kernel",
}
MIN_KERNELS = 10
"""Kernels of a kind a profile must have."""
FLOOR, SHORTEST, SMALLEST = 10.0, 100.0, 1_000_000
"""Host's microseconds in NeuSight's model times; shortest time (µs) and smallest output considered."""
MOVED = {
    "contiguous": ("contiguous",),
    "one of two is broadcast": ("add", "where"),
}


def shortest(folder: Path, besides: frozenset[str]) -> list[list[object]]:
    """Return for each GPU the lower quartile of each kind's durations, averaged over profiles not in
    `besides`."""
    lengths_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.json.gz")):
        if path.name in besides:
            continue
        try:
            timeline = read(path)
        except Exception:  # an unreadable profile is skipped
            continue
        name = timeline.facts.gpus[0].name if timeline.facts.gpus else ""
        for kind, pattern in KINDS.items() if name else ():
            length = _lengths(timeline, pattern)
            if len(length) >= MIN_KERNELS:
                lengths_of[name, kind].append(float(np.quantile(length, 0.25)))
    gpus = sorted({gpu for gpu, _ in lengths_of})
    return [
        [
            gpu,
            *(
                f"{np.mean(lengths_of[gpu, kind]):.1f}" if (gpu, kind) in lengths_of else "–"
                for kind in KINDS
            ),
        ]
        for gpu in gpus
    ]


def _lengths(timeline: Timeline, pattern: str) -> np.ndarray:
    """Return the microseconds of the kernels whose names match."""
    named = timeline.names_where(lambda name: re.search(pattern, name) is not None)
    rows = named[timeline.work.name] & (timeline.work.kind == WorkKind.KERNEL)
    return (timeline.work.end[rows] - timeline.work.start[rows]) / 1e3


def speeds(path: Path, operators: Sequence[Sample]) -> list[object]:
    """Return how fast a profile's GPU was: its shortest vectorized elementwise kernel in microseconds,
    and the 90th percentiles of TFLOP/s of 16-bit products and of GB/s of contiguous elementwise
    operators, of those over 100 µs."""
    shortest = _lengths(read(path), KINDS["elementwise, in vectors"])
    rates: dict[str, list[float]] = {MATMUL: [], "pointwise": []}
    for sample in operators:
        request = work(sample.entry)
        narrow = request.element_bytes == 2 if request.products else not request.strided_elements
        if sample.device > 1e3 * SHORTEST and request.family in rates and narrow:
            rates[request.family].append(
                (request.flops / 1e3 if request.products else request.bytes_moved) / sample.device
            )
    return [
        f"{shortest.min():.1f}" if len(shortest) else "–",
        *(f"{np.quantile(each, 0.9):.0f}" if each else "–" for each in rates.values()),
    ]


ROWS = re.compile(r"softmax_warp_forward<float, float, float, 10,")
"""This softmax before a loss over up to 1024 classes has a warp per row, four in each block."""


def one_block(folder: Path) -> list[list[object]]:
    """Return by profile the mean microseconds of losses summed by one block of 32 threads, forward and
    backward."""
    rows: list[list[object]] = []
    for path in sorted(folder.glob("*.json.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        if "nll_loss_forward_reduce_cuda_kernel_2d" not in text:
            continue
        document = json.loads(text, strict=False)
        kernels = [event for event in document["traceEvents"] if "grid" in (event.get("args") or {})]
        blocks = next((kernel["args"]["grid"][0] for kernel in kernels if ROWS.search(kernel["name"])), 0)
        took = [
            np.mean([kernel["dur"] for kernel in kernels if f"nll_loss_{way}_reduce" in kernel["name"]])
            for way in ("forward", "backward")
        ]
        gpu = document["deviceProperties"][0]["name"]
        name = path.name.removesuffix(".json.gz")
        rows.append([name, gpu, 4 * blocks or "–", *(f"{us:.1f}" for us in took)])
    return rows


def one_by_one(folder: Path) -> list[list[object]]:
    """Return elements per nanosecond and multiprocessor for operators on differing layouts or with
    broadcasting, in NeuSight's fp32 models, forward."""
    rates_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with gzip.open(folder / "neusight_model_ops.csv.gz", "rt", newline="") as file:
        for line in csv.DictReader(file):
            op = line["target"].split()[-1].split(".")[-1]
            kind = next((kind for kind, names in MOVED.items() if op in names), "")
            us = float(line["fw_us"])
            if not kind or line["gpu"] not in GPUS or us < SHORTEST:
                continue
            shape = json.loads("[" + line["output"].strip("(), ") + "]")
            sizes = [sizes for sizes in json.loads(line["inputs"]) if math.prod(sizes) > 1]
            if math.prod(shape) < SMALLEST or (op != "contiguous" and all(size == shape for size in sizes)):
                continue
            rate = math.prod(shape) / (us - FLOOR) / 1e3 / GPUS[line["gpu"]].multiprocessors
            rates_of[kind, line["gpu"]].append(rate)
    return [[*key, len(rates), f"{np.median(rates):.2f}"] for key, rates in sorted(rates_of.items())]
