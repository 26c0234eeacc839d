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
FEWEST = 10
"""Kernels of a kind that a profile needs."""
FLOOR, SHORTEST, SMALLEST = 10.0, 100.0, 1_000_000
"""Microseconds of the host in NeuSight's times of models; the shortest and the smallest looked at."""
MOVED = {
    "contiguous": ("contiguous",),
    "one of two is broadcast": ("add", "where"),
}


def shortest(folder: Path, besides: frozenset[str]) -> list[list[object]]:
    """For each GPU what the shortest quarter of kernels of each kind takes, in the mean over profiles that
    are none of `besides`."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.glob("*.json.gz")):
        if path.name in besides:
            continue
        try:
            timeline = read(path)
        except Exception:  # one that cannot be read tells nothing
            continue
        name = timeline.facts.gpus[0].name if timeline.facts.gpus else ""
        for kind, pattern in KINDS.items() if name else ():
            length = _lengths(timeline, pattern)
            if len(length) >= FEWEST:
                found[name, kind].append(float(np.quantile(length, 0.25)))
    gpus = sorted({gpu for gpu, _ in found})
    return [
        [gpu, *(f"{np.mean(found[gpu, kind]):.1f}" if (gpu, kind) in found else "–" for kind in KINDS)]
        for gpu in gpus
    ]


def _lengths(timeline: Timeline, pattern: str) -> np.ndarray:
    """Microseconds of the kernels whose names match."""
    named = timeline.names_where(lambda one: re.search(pattern, one) is not None)
    rows = named[timeline.work.name] & (timeline.work.kind == WorkKind.KERNEL)
    return (timeline.work.end[rows] - timeline.work.start[rows]) / 1e3


def speeds(path: Path, operators: Sequence[Sample]) -> list[object]:
    """How fast the GPU of a profile was: the shortest of its elementwise kernels in vectors, microseconds;
    TFLOP/s of its products in 16 bits and GB/s of its elementwise operators on tensors that are laid out
    alike, of those over 100 µs a tenth is faster."""
    shortest = _lengths(read(path), KINDS["elementwise, in vectors"])
    made: dict[str, list[float]] = {MATMUL: [], "pointwise": []}
    for one in operators:
        asked = work(one.entry)
        narrow = asked.size == 2 if asked.products else not asked.strided
        if one.device > 1e3 * SHORTEST and asked.family in made and narrow:
            made[asked.family].append((asked.flops / 1e3 if asked.products else asked.moved) / one.device)
    return [
        f"{shortest.min():.1f}" if len(shortest) else "–",
        *(f"{np.quantile(each, 0.9):.0f}" if each else "–" for each in made.values()),
    ]


ROWS = re.compile(r"softmax_warp_forward<float, float, float, 10,")
"""Before a loss over so many classes this softmax has a warp for each row, four in each block."""


def one_block(folder: Path) -> list[list[object]]:
    """Microseconds of losses whose rows are summed up by one block of 32 threads, in the mean, forward and
    backward, by profile."""
    rows: list[list[object]] = []
    for path in sorted(folder.glob("*.json.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        if "nll_loss_forward_reduce_cuda_kernel_2d" not in text:
            continue
        document = json.loads(text, strict=False)
        kernels = [one for one in document["traceEvents"] if "grid" in (one.get("args") or {})]
        blocks = next((one["args"]["grid"][0] for one in kernels if ROWS.search(one["name"])), 0)
        took = [
            np.mean([one["dur"] for one in kernels if f"nll_loss_{way}_reduce" in one["name"]])
            for way in ("forward", "backward")
        ]
        gpu = document["deviceProperties"][0]["name"]
        name = path.name.removesuffix(".json.gz")
        rows.append([name, gpu, 4 * blocks or "–", *(f"{one:.1f}" for one in took)])
    return rows


def one_by_one(folder: Path) -> list[list[object]]:
    """Elements that a multiprocessor moves in a nanosecond where tensors are laid out otherwise, or
    broadcast: the operators of NeuSight's models in fp32, forward."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with gzip.open(folder / "neusight_model_ops.csv.gz", "rt", newline="") as file:
        for line in csv.DictReader(file):
            op = line["target"].split()[-1].split(".")[-1]
            kind = next((kind for kind, names in MOVED.items() if op in names), "")
            us = float(line["fw_us"])
            if not kind or line["gpu"] not in GPUS or us < SHORTEST:
                continue
            shape = json.loads("[" + line["output"].strip("(), ") + "]")
            sizes = [one for one in json.loads(line["inputs"]) if math.prod(one) > 1]
            if math.prod(shape) < SMALLEST or (op != "contiguous" and all(one == shape for one in sizes)):
                continue
            rate = math.prod(shape) / (us - FLOOR) / 1e3 / GPUS[line["gpu"]].multiprocessors
            found[kind, line["gpu"]].append(rate)
    return [[*key, len(rates), f"{np.median(rates):.2f}"] for key, rates in sorted(found.items())]
