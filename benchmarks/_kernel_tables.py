"""Open tables of measured kernels, as entries of a programme with the time that each took.

The tables are CSV with the columns gpu, family, op, dtype, dims, us and source; `kernel_rows.py` writes the
same of a profile. NeuSight's times (MIT licence) were taken around a call that the host makes while the GPU
waits: they hold what the host needs. That is the same for every size of an operator on a machine, so that
part of the shortest time of each is taken off; `HOST` is the part that makes the rest proportional to the
bytes moved. Those of vidur (MIT) and of LLMServingSim (MIT; `llmservingsim_table.py` makes that table of a
checkout) are kernel times of a profiler; those of aiconfigurator (Apache-2.0) are means over calls from a
CUDA graph on data that stay in the cache.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gapless.analyze.kernel_times.device_work import DeviceWork
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.programme import Entry, GpuRates, Shape

HOST = 0.55
"""The host's part of an operator's shortest time in NeuSight's tables."""
SHORTEST = 150.0
"""Microseconds; a shorter time that includes the host's part says little about the kernel."""

MIB = 1 << 20


def _gpu(
    name: str,
    bandwidth: float,
    fp32: float,
    half: float,
    l2: int,
    processors: int,
    clock: int,
    tf32: float = 0,
) -> GpuRates:
    return GpuRates(
        name=name, bandwidth=bandwidth, fp32=fp32, tf32=tf32, fp16=half, bf16=half if tf32 else 0.0,
        l2_bytes=l2 * MIB, multiprocessors=processors, pcie=32, clock=clock,
    )  # fmt: skip


GPUS = {
    "P4": _gpu("Tesla P4", 192, 5.5, 0, 2, 20, 1063),
    "P100-PCIE-16GB": _gpu("Tesla P100-PCIE-16GB", 732, 9.3, 0, 4, 56, 1303),
    "V100-PCIE-32GB": _gpu("Tesla V100-PCIE-32GB", 900, 14.0, 112, 6, 80, 1380),
    "T4": _gpu("Tesla T4", 320, 8.1, 65, 4, 40, 1590),
    "A100-PCIE-40GB": _gpu("NVIDIA A100-PCIE-40GB", 1555, 19.5, 312, 40, 108, 1410, 156),
    "A100-PCIE-80GB": _gpu("NVIDIA A100 80GB PCIe", 1935, 19.5, 312, 40, 108, 1410, 156),
    "A100-SXM-80GB": _gpu("NVIDIA A100-SXM4-80GB", 2039, 19.5, 312, 40, 108, 1410, 156),
    "A40": _gpu("NVIDIA A40", 696, 37.4, 149.7, 6, 84, 1740, 74.8),
    "RTX-3090": _gpu("NVIDIA GeForce RTX 3090", 936, 35.6, 71.2, 6, 82, 1695, 35.6),
    "RTX-4090": _gpu("NVIDIA GeForce RTX 4090", 1008, 82.6, 165.2, 72, 128, 2520, 82.6),
    "RTX-A6000": _gpu("NVIDIA RTX A6000", 768, 38.7, 154.8, 6, 84, 1800, 77.4),
    "L4": _gpu("NVIDIA L4", 300, 30.3, 121, 48, 58, 2040, 60),
    "L40S": _gpu("NVIDIA L40S", 864, 91.6, 362, 96, 142, 2520, 183),
    "H100-SXM-80GB": _gpu("NVIDIA H100 80GB HBM3", 3350, 67, 989.4, 50, 132, 1980, 494.7),
    "H200-SXM-141GB": _gpu("NVIDIA H200", 4800, 67, 989.4, 60, 132, 1980, 494.7),
    "B200-SXM-180GB": _gpu("NVIDIA B200", 8000, 75, 2250, 126, 148, 1965, 1100),
    "RTX-PRO-6000-SERVER": _gpu(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597, 120, 503.8, 128, 188, 2430, 251.9
    ),
}
"""By the tables' names; figures from NVIDIA's data sheets."""


@dataclass(frozen=True)
class Row:
    """One measured kernel: what was run, its microseconds, and these with the host's part (`raw`)."""

    gpu: str
    family: str
    op: str
    dtype: str
    dims: tuple[int, ...]
    us: float
    raw: float
    source: str
    kept: bool

    @property
    def entry(self) -> Entry:
        """The torch operator that was measured."""
        return entry(self.family, self.op, self.dtype, self.dims)

    @property
    def work(self) -> DeviceWork:
        """The work of `entry`. Repeated calls on the same data find it in the cache, as far as it fits; a
        model's layers do not."""
        request = work(self.entry)
        return request if self.source == "llmservingsim" else request._replace(cold_bytes=0.0)

    @property
    def tells_of_kernel(self) -> bool:
        """Whether the time says something about the kernel."""
        return self.source != "neusight" or self.raw > SHORTEST


def rows(folder: Path) -> list[Row]:
    """Return all rows of the tables in `folder`; a fifth, chosen by shape, is held out from the fit
    (`Row.kept`)."""
    tables_rows = [
        row for path in sorted(folder.glob("*_kernels.csv.gz")) for row in _read(path) if not _is_foreign(row)
    ]
    shortest: defaultdict[tuple[str, str], float] = defaultdict(lambda: float("inf"))
    for row in tables_rows:
        if row.source == "neusight":
            key = row.gpu, row.op
            shortest[key] = min(shortest[key], row.raw)
    return [
        replace(row, us=row.raw - HOST * shortest[row.gpu, row.op]) if row.source == "neusight" else row
        for row in tables_rows
    ]


_FOREIGN = ("rms_norm_residual", "rope", "silu_and_mul", "rms_norm")
"""Kernels of inference servers that PyTorch lacks; so is vidur's `gelu`."""


def _is_foreign(row: Row) -> bool:
    return row.op in _FOREIGN or (row.op == "gelu" and row.source == "vidur")


def _read(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", newline="") as file:
        for line in csv.DictReader(file):
            dims = tuple(map(int, line["dims"].split("x")))
            us = float(line["us"])
            kept = zlib.crc32(line["dims"].encode()) % 5 == 0
            source = line["source"].split("/")[0]
            yield Row(
                line["gpu"], line["family"], line["op"], line["dtype"], dims, us, us, source, kept
            )  # fmt: skip


# What was measured, as torch calls it --------------------------------------------------------------

DTYPES = {"fp32": ("float32", 4), "fp16": ("float16", 2), "bf16": ("bfloat16", 2)}
_UNARY = {
    "relu": "relu",
    "gelu": "gelu",
    "tanh": "tanh",
    "addu": "add",
    "mulu": "mul",
    "divu": "div",
    "powu": "pow",
}
_BINARY = ("add", "mul", "div", "pow")


def entry(family: str, op: str, dtype: str, dims: tuple[int, ...]) -> Entry:
    """The operator that a row of that kind stands for.

    Raises:
        ValueError: nothing in torch stands for it.
    """
    name, inputs, outputs = _torch_call(family, op, dims)
    kind, size = DTYPES[dtype]

    def count(shapes: list[Shape]) -> int:
        total = 0
        for shape in shapes:
            elements = 1
            for side in shape:
                elements *= side
            total += elements
        return total

    return Entry(
        name=f"aten::{name}", dtype=kind, inputs=tuple(inputs), outputs=tuple(outputs), tensors=len(inputs),
        elements=count(inputs), reads=size * count(inputs), writes=size * count(outputs),
        causal=op == "flash_causal_fw",
    )  # fmt: skip


def _torch_call(family: str, op: str, dims: tuple[int, ...]) -> tuple[str, list[Shape], list[Shape]]:
    if family == "matmul":
        batch, rows, columns, inner = dims
        if op == "bmm":
            return "bmm", [(batch, rows, inner), (batch, inner, columns)], [(batch, rows, columns)]
        side_out = (batch * rows, columns)
        if op == "linear":
            return "addmm", [(columns,), (batch * rows, inner), (inner, columns)], [side_out]
        return "mm", [(batch * rows, inner), (inner, columns)], [side_out]
    if family == "convolution":
        batch, taken, out, kernel, side, stride, padding = dims
        side_out = (side + 2 * padding - kernel) // stride + 1
        shapes: list[Shape] = [(batch, taken, side, side), (out, taken, kernel, kernel)]
        return "cudnn_convolution", shapes, [(batch, out, side_out, side_out)]
    if family == "attention":
        batch, length, heads, groups, size = dims
        q, kv = (batch, heads, length, size), (batch, groups, length, size)
        return "_scaled_dot_product_flash_attention", [q, kv, kv], [q]
    return _memory_call(family, op, dims)


def _memory_call(family: str, op: str, dims: tuple[int, ...]) -> tuple[str, list[Shape], list[Shape]]:
    rows, columns = dims
    shape: Shape = (rows, columns)
    plain: dict[str, Callable[[], tuple[str, list[Shape], list[Shape]]]] = {
        "ln": lambda: ("native_layer_norm", [shape, (columns,), (columns,)], [shape, (rows, 1), (rows, 1)]),
        "layer_norm": lambda: ("native_layer_norm", [shape, (columns,), (columns,)], [shape]),
        "rms_norm": lambda: ("_fused_rms_norm", [shape, (columns,)], [shape]),
        "softmax": lambda: ("_softmax", [shape], [shape]),
        "embedding": lambda: ("embedding", [(50_000, columns), (rows,)], [shape]),
    }
    if op in plain:
        return plain[op]()
    if op in _BINARY:
        return op, [shape, shape], [shape]
    if op in _UNARY:
        return _UNARY[op], [shape], [shape]
    raise ValueError(f"no operator of torch stands for {family} {op}")
