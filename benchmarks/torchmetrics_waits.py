"""How often the host waits in every metric TorchMetrics exports: as it is, with its best options, after
`unwait`.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _sheet
import torch
import torchmetrics
from _torchmetrics_cases import FAMILIES, Case, Make, cases, update
from torchmetrics import MetricCollection, aggregation, classification

import gapless
from gapless.metrics.torchmetrics import unwait
from gapless.metrics.torchmetrics._measured import TABLE_COLUMNS, WAITS_TABLE, name_of, options_of


@dataclass(frozen=True)
class WaitCounts:
    """Waits of the third update and of compute after it, and for each the line of TorchMetrics with most."""

    metric: Any
    update: int
    compute: int
    update_place: str
    compute_place: str


def count_waits(case: Case, change: Callable[[Any], Any] | None = None, **options: Any) -> WaitCounts:
    """Count the waits of a case on the emulated device."""
    with gapless.emulate() as emulated:
        metric = case.build(**options).to("cuda")
        if change is not None:
            change(metric)
        for step in range(3):
            batch = case.batch(Make(step, "cuda"))
            before = waits_by_place(emulated)
            update(metric, batch, step)
        between = waits_by_place(emulated)
        metric.compute()
        updates, computes = between - before, waits_by_place(emulated) - between
    return WaitCounts(metric, updates.total(), computes.total(), busiest(updates), busiest(computes))


def waits_by_place(emulated: Any) -> Counter[str]:
    """Return all waits so far by the innermost line of TorchMetrics."""
    session = emulated.session
    counts: Counter[str] = Counter()
    for event in session.events:
        counts[place_of(session.sites[event.site].stack)] += event.waits
    return counts


def place_of(stack: Any) -> str:
    """Return ``file:line code``, the path from ``torchmetrics/`` on; empty without a line of TorchMetrics."""
    for line in stack:
        if line.library == "torchmetrics":
            file = "/".join(Path(line.file).parts)
            file = file[file.rindex("torchmetrics/") :] if "torchmetrics/" in file else file
            return "" if file == "torchmetrics/metric.py" else f"{file}:{line.line} {line.code}"
    return ""


def busiest(counts: Counter[str]) -> str:
    """Return the place with most waits."""
    return max(counts, key=lambda place: (counts[place], place), default="")


def wait_tables() -> tuple[str, list[list[object]], list[int]]:
    """Return the tables of the sheet, the package's rows, and totals."""
    text, measured, total = "", [], [0] * 8
    for family, make in FAMILIES.items():
        rows: list[list[object]] = []
        for case in make():
            plain = count_waits(case)
            best = count_waits(case, **case.best) if case.best else None
            after = count_waits(case, lambda metric: unwait(metric, checks="later"))
            checks = count_waits(case, unwait).compute - after.compute
            row = [case.name, plain.update, best.update if best else "", after.update]
            rows.append([*row, plain.compute, best.compute if best else "", after.compute, checks])
            if isinstance(plain.metric, torchmetrics.Metric):
                counts = (plain.update, after.update, plain.compute, after.compute, checks)
                places = (after.update_place, after.compute_place)
                measured.append([name_of(plain.metric), options_of(plain.metric), *counts, *places])
            sums = (plain.update, after.update, plain.compute, after.compute, checks)
            waiting = (plain.update > 0, after.update > 0, after.compute > 0)
            total = [a + b for a, b in zip(total, (*sums, *waiting), strict=True)]
        columns = ["case", "update", "best options", "unwait", "compute", "best options", "unwait", "checks"]
        text += f"## {family.capitalize()}\n\n" + _sheet.table(columns, rows) + "\n"
    return text, measured, [int(n) for n in total]


def update_of_five(classes: int, batch: int, kind: str) -> Callable[[], None]:
    """Return one update of a mean and four macro class metrics on the host, in the way `kind`."""
    options = {"validate_args": False} if kind == "best options" else {}
    mean = aggregation.MeanMetric(**({"nan_strategy": "disable"} if options else {}))
    names = ("MulticlassAccuracy", "MulticlassPrecision", "MulticlassRecall", "MulticlassF1Score")
    metrics: Any = [getattr(classification, name)(classes, **options) for name in names]
    if kind.endswith("one collection") or kind == "best options":
        metrics = [MetricCollection(metrics)]
    if kind.startswith("unwait"):
        unwait([mean, *metrics])
    logits, target = torch.randn(batch, classes), torch.randint(classes, (batch,))
    loss = torch.tensor(1.0)

    def step() -> None:
        mean.update(loss)
        for metric in metrics:
            metric.update(logits, target)

    step()
    return step


def time_rows(rounds: int) -> list[list[object]]:
    """Return rows of microseconds per update of the five metrics: medians, all ways in turn."""
    kinds = ("defaults", "unwait", "best options", "unwait, one collection")
    rows: list[list[object]] = []
    for classes, batch in ((10, 128), (10, 4096), (1000, 128), (1000, 4096)):
        steps = {kind: update_of_five(classes, batch, kind) for kind in kinds}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, step in steps.items():
                began = time.perf_counter()
                for _ in range(5):
                    step()
                times[kind].append((time.perf_counter() - began) / 5 * 1e6)
        rows.append(
            [f"C = {classes}, batch {batch}", *(f"{statistics.median(times[kind]):.0f}" for kind in kinds)]
        )
    return rows


METHOD = (
    "each metric is built and updated three times on the emulated device (12 samples, 5 classes, 4 labels); "
    "waits of the third update and of the compute after it. `best options`: `validate_args=False` or "
    '`nan_strategy="disable"`. `unwait`: as it comes, with the checks on, which costs one wait in each '
    "compute that has something to check. Not built: what needs a download or a package of its own"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the time table")
    parser.add_argument(
        "--no-counts", action="store_true", help="do not write the counts that the package shows"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tables, measured, total = wait_tables()
    text = _sheet.header("Waits of TorchMetrics", "python benchmarks/torchmetrics_waits.py", METHOD)
    text += (
        f"torchmetrics {torchmetrics.__version__}, {sum(1 for _ in cases())} cases. Of these, {total[5]} "
        f"wait in update, with `unwait` {total[6]}. Waits of all updates: {total[0]}, with `unwait` "
        f"{total[1]}; of all computes: {total[2]}, with `unwait` {total[3]}, and {total[4]} to report "
        f"checks.\n\n{tables}"
        "## Host time of an update: mean, macro accuracy, precision, recall, F1\n\n"
        "µs on the CPU, one thread, where nothing waits: the cost of the work alone.\n\n"
    )
    columns = ["", "defaults", "unwait", "best options, one collection", "unwait, one collection"]
    text += _sheet.table(columns, time_rows(args.rounds))
    if not args.no_counts:
        lines = [torchmetrics.__version__, "\t".join(TABLE_COLUMNS)]
        lines += ["\t".join(str(cell).replace("\t", " ") for cell in row) for row in measured]
        WAITS_TABLE.write_text("\n".join(lines) + "\n")
    print(_sheet.write("torchmetrics_waits", text))


if __name__ == "__main__":
    main()
