"""How far off the times of collectives are, and where their constants come from.

    python benchmarks/collective_times.py FOLDER            # print the sheet
    python benchmarks/collective_times.py FOLDER --write    # writes benchmarks/sheets/collective_times.md
    python benchmarks/collective_times.py FOLDER --fit      # print the constants that fit best

FOLDER holds ``collectives.csv.gz``: nccl-tests by machine, kind, ranks and bytes (aiconfigurator,
Apache-2.0), and those of PyTorch (vidur, MIT), which nothing is fitted to. A fifth of all sizes is kept from
the fit, and the sheet tells of those alone. Needs scipy, which Gapless does not.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import _sheet
import numpy as np
from scipy.optimize import minimize

from gapless.analyze.estimate.collective_times import collective_spread, collective_time
from gapless.model.gpus import find
from gapless.model.programme import Entry, GpuRates, Programme, gpu_limits

MACHINES = {
    "a100_sxm": "a100", "a100_dgx": "a100", "h100_sxm": "h100", "h100_dgx": "h100", "h200_sxm": "h200",
    "b200_sxm": "b200", "b300_sxm": "b200", "l40s": "l40s",
}  # fmt: skip
RTX_PRO = GpuRates(name="NVIDIA RTX PRO 6000 Blackwell Server Edition", pcie=64, bandwidth=1597, fp32=120)
FITTED = {"a100_sxm": "A100", "h100_sxm": "H100", "h200_sxm": "H100", "b200_sxm": "B200", "l40s": "L40S"}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Row(NamedTuple):
    machine: str
    source: str
    kind: str
    ranks: int
    nbytes: int
    us: float
    kept: bool


def rows(folder: Path) -> list[Row]:
    """Return the collectives within a machine of known GPU."""
    measured = []
    with gzip.open(folder / "collectives.csv.gz", "rt", newline="") as file:
        for line in csv.DictReader(file):
            machine, ranks = line["node"].split("/")[0], int(line["ranks"])
            kind = line["op"].replace("alltoall", "all_to_all")
            is_known = machine in MACHINES or machine == "rtx_pro_6000_server"
            if is_known and kind in KINDS and int(line["per_node"]) == ranks:
                kept = zlib.crc32((line["node"] + line["nbytes"]).encode()) % 5 == 0
                size = int(float(line["nbytes"]))
                measured.append(Row(machine, line["source"], kind, ranks, size, float(line["us"]), kept))
    return measured


def gpu_of(machine: str) -> GpuRates:
    return gpu_limits(find(MACHINES[machine])) if machine in MACHINES else RTX_PRO


def entry_of(row: Row) -> tuple[Entry, Programme]:
    entry = Entry(
        kind="collective", name=row.kind, ranks=row.ranks, group=f"all {row.ranks} ranks",
        reads=row.nbytes, writes=row.nbytes,
    )  # fmt: skip
    return entry, Programme(gpu=gpu_of(row.machine), node=8)


def table(measured: Sequence[Row]) -> list[list[object]]:
    groups: defaultdict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in measured:
        if row.kept:
            groups[row.source, row.machine, row.kind].append(row)
    cells: list[list[object]] = []
    for (source, machine, kind), mine in sorted(groups.items()):
        real = np.array([row.us for row in mine])
        guess = np.array([collective_time(*entry_of(row)) for row in mine]) / 1e3
        before = np.array([_time_before(row) for row in mine]) / 1e3
        wide = np.array([1.2816 * collective_spread(*entry_of(row)) for row in mine])
        inside = (np.abs(np.log(real / guess)) <= wide).mean()
        errors = [f"{np.abs(estimates / real - 1).mean():.0%}" for estimates in (before, guess)]
        cells.append([source, machine, kind, len(mine), *errors, f"{inside:.0%}"])
    return cells


def _time_before(row: Row) -> float:
    """Return nanoseconds by the earlier constants: one latency and one share of the links."""
    gpu = gpu_of(row.machine)
    link = gpu.link * 0.78 if gpu.link > gpu.pcie else gpu.pcie * 0.39
    moving = (row.ranks - 1) / row.ranks * (2 if row.kind == "all_reduce" else 1) * row.nbytes / link
    return float(21_000 + moving + 0.75 * np.sqrt(21_000 * moving))


def fit(measured: Sequence[Row]) -> None:
    """Print for each machine: launch and step in microseconds, the bend, and shares by kind for 2, 4, 8
    ranks."""
    for name in (*dict.fromkeys(FITTED.values()), "RTX PRO 6000"):
        mine = [
            row for row in measured
            if row.source == "aiconfigurator" and not row.kept and row.machine != "b300_sxm"
            and FITTED.get(row.machine, "RTX PRO 6000") == name
        ]  # fmt: skip
        kind = np.array([KINDS.index(row.kind) for row in mine])
        ranks = np.array([row.ranks for row in mine])
        link = np.array([max(gpu_of(row.machine).link, gpu_of(row.machine).pcie) for row in mine])
        bus = (ranks - 1) / ranks * np.where(kind == 0, 2, 1) * np.array([row.nbytes for row in mine]) / link
        steps = (ranks - 1) * np.array([2, 1, 1, 0.4])[kind]
        real = np.log([row.us * 1e3 for row in mine])
        place = np.log2(ranks).astype(int) - 1

        def loss(
            flat: np.ndarray, columns: tuple[np.ndarray, ...] = (kind, bus, steps, real, place)
        ) -> float:
            kind, bus, steps, real, place = columns
            begin = (np.exp(flat[0]) + np.exp(flat[1]) * steps) * 1e3 + (kind == 3) * 2_500
            moving = bus / np.exp(flat[3:].reshape(4, 3))[kind, place]
            return float(
                np.abs(np.log(begin + moving + np.exp(flat[2]) * np.sqrt(begin * moving)) - real).mean()
            )

        slow = np.log([0.64, 0.16, 0.05] if name == "L40S" else [0.7] * 3)
        flat = np.r_[np.log([6, 1, 1]), np.tile(slow, 4)]
        for _ in range(4):
            flat = minimize(loss, flat, method="Powell", options={"maxiter": 3}).x
        print(name, np.exp(flat[:3]).round(2), np.exp(flat[3:].reshape(4, 3)).round(3).tolist())


def sheet_of(folder: Path) -> str:
    text = _sheet.header(
        "Times of collectives, against open tables",
        "python benchmarks/collective_times.py FOLDER --write",
        "collectives within a machine, of sizes kept from the fit; mean |estimated / measured − 1|; "
        "*inside*: how many lie in the interval that four fifths should; nothing is fitted to vidur's (eager "
        "PyTorch) nor to the B300's, which takes the figures of the B200",
    )
    heads = ["source", "machine", "kind", "rows", "before", "now", "inside"]
    return text + _sheet.table(heads, table(rows(folder)))


if __name__ == "__main__":
    _sheet.fit_main(__doc__ or "", "collective_times", lambda folder: fit(rows(folder)), sheet_of)
