"""Estimates against measured kernels, where the tables are at hand: no further off than the sheet says."""

from __future__ import annotations

import csv
import gzip
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from gapless.analyze.estimate.spread import time_spread
from gapless.analyze.kernel_times.durations import device_time
from gapless.analyze.kernel_times.operator_work import work
from gapless.model.gpus import find
from gapless.model.programme import Entry, gpu_limits

TABLES = Path(__file__).resolve().parents[4] / "shared" / "kernel_times"
GPUS = {"A100-SXM-80GB": "a100", "H100-SXM-80GB": "h100", "H200-SXM-141GB": "h200", "B200-SXM-180GB": "b200"}


def product(dims: str) -> Entry:
    batch, m, n, k = map(int, dims.split("x"))
    rows = batch * m
    return Entry(
        name="aten::mm", dtype="bfloat16", inputs=((rows, k), (k, n)), outputs=((rows, n),), tensors=2,
        reads=2 * (rows * k + k * n), writes=2 * rows * n,
    )  # fmt: skip


@pytest.mark.skipif(not TABLES.is_dir(), reason="the tables are not at hand")
@pytest.mark.parametrize(
    ("table", "gpus", "most"),
    [
        (
            "aiconfigurator_kernels",
            ("A100-SXM-80GB", "B200-SXM-180GB", "H100-SXM-80GB", "H200-SXM-141GB"),
            0.10,
        ),
        ("vidur_kernels", ("A100-SXM-80GB", "H100-SXM-80GB"), 0.10),
    ],
)
def test_products_in_16_bits(table: str, gpus: tuple[str, ...], most: float) -> None:
    """The median error from 100 µs on, and the interval that four fifths should lie in."""
    with gzip.open(TABLES / f"{table}.csv.gz", "rt", newline="") as file:
        lines = [
            (line["gpu"], line["dims"], float(line["us"]))
            for line in csv.DictReader(file)
            if line["family"] == "matmul" and zlib.crc32(line["dims"].encode()) % 5 == 0
        ]
    for gpu in gpus:
        card = gpu_limits(find(GPUS[gpu]))
        mine = list(islice(((dims, us) for name, dims, us in lines if name == gpu and us >= 100), 500))
        real = np.array([us for _, us in mine]) * 1e3
        requests = [work(product(dims)) for dims, _ in mine]
        guess = np.array([device_time(request, card) for request in requests])
        assert np.median(np.abs(guess / real - 1)) <= most
        wide = np.array([1.2816 * time_spread(request, card) for request in requests])
        assert (np.abs(np.log(real / guess)) <= wide).mean() >= 0.65
