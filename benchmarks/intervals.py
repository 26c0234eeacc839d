"""Whether whole models take what an estimate's interval says: four in five should."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import _sheet
import numpy as np
from _kernel_models import runs
from estimate import read_profiles
from kernel_times import GPUS, of_its_class

from gapless.analyze.estimate.draws import draw_machines, interval
from gapless.analyze.estimate.timing import Times
from gapless.model.programme import Entry, GpuRates

METHOD = (
    "all operators of a model together: their times by the tables' labels (whole runs in fp32, of which "
    "nothing was fitted but the constants of single kernels) or a profile's kernels (any type), and the "
    "interval of the drawn machines; *class* with the shares of the GPU's class instead of its own"
)


def compare(entries: Iterable[tuple[Entry, int]], gpu: GpuRates, real: float) -> tuple[float, float, bool]:
    """Return estimated over real time, the ratio of the interval's ends, and whether the real time is
    inside."""
    times, entry_list = Times(gpu), list(entries)
    first = {(entry.name, entry.inputs, entry.dtype): entry for entry, _ in reversed(entry_list)}
    representatives = [first[entry.name, entry.inputs, entry.dtype] for entry, _ in entry_list]
    length = np.array([times.add_times(entry).device * count for entry, count in entry_list], float)
    total = interval(
        length.sum(),
        [(length * pace.device).sum() for pace in draw_machines(representatives, times.doubt, 0.0)],
    )
    return total.likely / real, total.most / max(total.least, 1), total.least <= real <= total.most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with `kernel_times` and `traces`")
    folder = parser.parse_args().folder
    groups: dict[str, list[tuple[float, float, bool]]] = {}
    for run in runs(folder / "kernel_times"):
        if run.gpu in GPUS:
            for kind, gpu in (("own shares", GPUS[run.gpu]), ("class", of_its_class(GPUS[run.gpu]))):
                groups.setdefault(f"whole runs in fp32, {kind}", []).append(
                    compare(run.entries(), gpu, run.us * 1e3)
                )
    for profile in read_profiles(folder / "traces"):
        real = sum(max(sample.device, 500) for sample in profile.operators)
        entries = [(sample.entry, 1) for sample in profile.operators]
        groups.setdefault("profiles", []).append(compare(entries, profile.gpu, real))
    rows: list[list[object]] = []
    for name, members in groups.items():
        off, wide, within = (np.array(column) for column in zip(*members, strict=True))
        spread = np.sqrt(np.mean(np.log(off) ** 2))
        rows.append(
            [name, len(members), f"{spread:.2f}", f"{np.median(np.sqrt(wide)):.2f}", f"{within.mean():.0%}"]
        )
    text = _sheet.header("Intervals of whole models", "python benchmarks/intervals.py FOLDER", METHOD)
    columns = ["models", "how many", "rms of ln(estimated / real)", "interval, ×/÷ (median)", "within"]
    text += _sheet.table(columns, rows)
    print(text)
    _sheet.write("intervals", text)


if __name__ == "__main__":
    main()
