"""Estimated times of recurrent layers beside DeepBench's measurements of cuDNN's.

    git clone https://github.com/baidu-research/DeepBench
    python benchmarks/recurrent_layers.py DeepBench            # print the sheet
    python benchmarks/recurrent_layers.py DeepBench --write    # writes benchmarks/sheets/recurrent_layers.md

Its tables are workbooks: needs openpyxl. A row is one layer in one direction whose input is added as it is
(``CUDNN_SKIP_INPUT``), so that the products with the input are left out here as well.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import _sheet
from openpyxl import load_workbook

from gapless.analyze.kernel_times.durations import recurrent_time
from gapless.analyze.kernel_times.recurrent import recurrent_steps
from gapless.model.programme import Entry, GpuRates

GPU = GpuRates(name="V100", bandwidth=900, fp32=15.7, fp16=125, l2_bytes=6 << 20, multiprocessors=80)
BOOK = "results/train/DeepBench_NV_V100.xlsx"
GATES = {"Vanilla": 1, "LSTM": 4, "GRU": 3}
PASSES = ("forward", "backward")


@dataclass
class Row:
    """One measured layer: milliseconds forward, and backward to input and weights together."""

    half: bool
    kind: str
    units: int
    batch: int
    steps: int
    forward: float
    backward: float

    def estimate(self, backward: bool) -> float:
        """Return the estimated milliseconds."""
        rows = GATES[self.kind] * self.units
        data, state = (self.steps, self.batch, self.units), (1, self.batch, self.units)
        name = "aten::_cudnn_rnn_backward" if backward else "aten::_cudnn_rnn"
        entry = Entry(name=name, inputs=(data, (rows, 0), (rows, self.units)), outputs=(data, state))
        chain_found = recurrent_steps(entry, backward, 2 if self.half else 4)
        assert chain_found is not None
        return recurrent_time(chain_found, GPU.fp16 if self.half else GPU.fp32, GPU) / 1e6


def rows(book: Path) -> Iterator[Row]:
    """Yield the recurrent layers of a workbook of results."""
    workbook = load_workbook(book, data_only=True)
    for name in workbook.sheetnames:
        kind = ""
        for cells in workbook[name].iter_rows(values_only=True):
            filled = [cell for cell in cells if cell is not None]
            numbers = [cell for cell in cells if isinstance(cell, (int, float))]
            if filled and str(filled[0]).startswith("Recurrent Layers"):
                kind = str(filled[0]).split("- ")[1]
            elif kind and len(numbers) >= 6:
                units, batch, steps = map(int, numbers[:3])
                yield Row("FP16" in name, kind, units, batch, steps, numbers[3], numbers[4] + numbers[5])
            elif filled and len(filled) < 3:
                kind = ""


def sheet(options: argparse.Namespace) -> str:
    measured = list(rows(options.checkout / BOOK))
    table: list[list[object]] = []
    for half in (False, True):
        for kind in GATES:
            some = [layer for layer in measured if (layer.half, layer.kind) == (half, kind)]
            for back, name in enumerate(PASSES):
                ratios = [
                    layer.estimate(bool(back)) / (layer.backward if back else layer.forward) for layer in some
                ]
                off = statistics.median(abs(ratio - 1) for ratio in ratios)
                spread = statistics.pstdev(map(math.log, ratios))
                row = ["16 bits" if half else "fp32", kind, name, len(some)]
                table.append([*row, f"{statistics.median(ratios):.2f}", f"{off:.1%}", f"{spread:.2f}"])
    text = _sheet.header(
        "Recurrent layers of cuDNN",
        "python benchmarks/recurrent_layers.py DeepBench --write",
        "each layer of DeepBench's training results (Apache-2.0) on a V100, CUDA 10.1, cuDNN 7.6, beside the "
        "estimate, whose two constants are fitted to them; spread is the standard deviation of "
        "ln(estimated / measured)",
    )
    heads = ["numbers", "layer", "pass", "rows", "estimated / measured", "median error", "spread"]
    return text + _sheet.table(heads, table)


if __name__ == "__main__":
    _sheet.main(
        "recurrent_layers", __doc__ or "", sheet, checkout={"type": Path, "help": "a checkout of DeepBench"}
    )
