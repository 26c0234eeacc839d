"""How slow the CPUs are that older GPUs stand beside, by the shortest times of operators in open tables.

    python benchmarks/hosts_beside.py FOLDER            # print the sheet
    python benchmarks/hosts_beside.py FOLDER --write    # … and keep it in benchmarks/sheets

FOLDER holds NeuSight's table (`_kernel_tables.py`): calls of single operators, each after a wait, between two
events. The shortest are of a few elements, so that they are the CPU's, but for the events and for the kernel.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

import _sheet
from _kernel_tables import rows

from gapless.analyze.estimate.times import USUAL, host_factor_beside

REFERENCE = "A100-PCIE-40GB"
"""GPU whose host counts as the usual CPU."""
EVENTS = 5.0
"""Microseconds of both events and of the shortest kernel."""
TIMES_PER_SHORTEST = 200
"""One in so many times counts as the shortest."""


def shortest(folder: Path) -> dict[str, dict[str, float]]:
    """Return the shortest microseconds by GPU and operator; without convolutions, which are never that
    short."""
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows(folder):
        if row.source == "neusight" and row.family != "convolution":
            times[row.gpu, row.op].append(row.raw)
    by_gpu: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (gpu, op), mine in times.items():
        by_gpu[gpu][op] = sorted(mine)[len(mine) // TIMES_PER_SHORTEST]
    return by_gpu


def sheet(folder: Path) -> str:
    by_gpu = shortest(folder)
    call, usual = EVENTS + USUAL.call / 1e3, by_gpu[REFERENCE]
    table: list[list[object]] = []
    for gpu, mine in sorted(by_gpu.items()):
        times = [(mine[op] - call) / (usual[op] - call) for op in mine if op in usual]
        low, middle, high = statistics.quantiles(times, n=4)
        cells = [f"{middle:.2f} ({low:.2f} to {high:.2f})", f"{host_factor_beside(gpu):g}"]
        table.append([gpu, len(times), f"{statistics.median(mine.values()):.0f}", *cells])
    text = _sheet.header(
        "CPUs beside GPUs",
        "python benchmarks/hosts_beside.py FOLDER --write",
        f"the shortest of {TIMES_PER_SHORTEST} times of each operator, less {EVENTS:g} µs for events and "
        f"kernel and {USUAL.call / 1e3:g} µs for the launch, in parts of the same beside {REFERENCE}: "
        "median over operators (quartiles). One machine of each GPU; estimates take what the last column "
        "says",
    )
    return text + _sheet.table(["GPU", "operators", "shortest, µs", "times as long", "taken"], table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = sheet(options.folder)
    print(text)
    if options.write:
        _sheet.write("hosts_beside", text)


if __name__ == "__main__":
    main()
