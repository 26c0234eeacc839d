"""How often each class waits, counted on the emulated device by ``benchmarks/torchmetrics_waits.py``."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torchmetrics
from torchmetrics import Metric

from gapless.metrics.torchmetrics._origins import waited_class

WAITS_TABLE = Path(__file__).with_name("measured.tsv")


@dataclass(frozen=True)
class WaitCounts:
    """Waits per call: in TorchMetrics, and unwaited.

    `checks` is 1 if each ``compute`` waits once more to report checks, unless these are reported later or not
    at all. The places are the lines of TorchMetrics that cause most of the remaining waits, as ``file:line
    code``; empty if none remain.
    """

    update: int
    update_unwaited: int
    compute: int
    compute_unwaited: int
    checks: int = 0
    update_place: str = ""
    compute_place: str = ""


TABLE_COLUMNS = ("class", "options", *(field.name for field in fields(WaitCounts)))
"""Columns of the table; its first line is the version of TorchMetrics."""


def options_of(metric: Any) -> str:
    """Return the options of a metric that decide how often it waits, as the table names them."""
    options = [name for name in ("thresholds", "ignore_index") if getattr(metric, name, None) is not None]
    if getattr(metric, "average", None) == "micro":
        options.append("micro")
    if getattr(metric, "multidim_average", None) == "samplewise":
        options.append("samplewise")
    if (getattr(metric, "top_k", 1) or 1) != 1:
        options.append("top_k")
    return ",".join(options)


def name_of(thing: object) -> str:
    """Return the class's name as it is imported: TorchMetrics marks root imports with a ``_``."""
    cls = waited_class(type(thing))
    return cls.__name__.lstrip("_") if cls.__module__.endswith("._deprecated") else cls.__name__


def waits_of(metric: Metric) -> WaitCounts | None:
    """Return the counts for the metric's class and options, if made with this version of TorchMetrics."""
    version, counts = _counts()
    if version.split(".")[:2] != torchmetrics.__version__.split(".")[:2]:
        return None
    return counts.get((name_of(metric), options_of(metric)))


@lru_cache(maxsize=1)
def _counts() -> tuple[str, dict[tuple[str, str], WaitCounts]]:
    """Return TorchMetrics' version and the counts of the table, by class and options."""
    if not WAITS_TABLE.exists():
        return "", {}
    with WAITS_TABLE.open(encoding="utf-8", newline="") as file:
        version = file.readline().strip()
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    counts = {}
    for row in reversed(rows):  # the first of a class's cases is the usual one
        n: dict[str, Any] = {name: int(row[name]) for name in TABLE_COLUMNS[2:7]}
        n["update_place"], n["compute_place"] = row["update_place"], row["compute_place"] or ""
        counts[row["class"], row["options"]] = WaitCounts(**n)
    return version, counts
