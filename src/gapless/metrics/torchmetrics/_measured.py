"""How often each class waits, as counted on the emulated device by ``benchmarks/torchmetrics_waits.py``."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torchmetrics
from torchmetrics import Metric

from gapless.metrics.torchmetrics._origins import waited_class

MEASURED = Path(__file__).with_name("measured.tsv")


@dataclass(frozen=True)
class Waits:
    """Waits per call: as TorchMetrics has it, and unwaited.

    `checks` is what each ``compute`` waits more to report the checks, 0 or 1, unless they are told later or
    not at all. The places are the lines of TorchMetrics that wait most often of what is left, as
    ``file:line code``, empty where nothing is.
    """

    update: int
    update_unwaited: int
    compute: int
    compute_unwaited: int
    checks: int = 0
    update_place: str = ""
    compute_place: str = ""


COLUMNS = ("class", "options", *(one.name for one in fields(Waits)))
"""Of the table; its first line is the version of TorchMetrics that was counted."""


def options_of(metric: Any) -> str:
    """The options of a metric that decide how often it waits, as the table of counts names them."""
    found = [name for name in ("thresholds", "ignore_index") if getattr(metric, name, None) is not None]
    if getattr(metric, "average", None) == "micro":
        found.append("micro")
    if getattr(metric, "multidim_average", None) == "samplewise":
        found.append("samplewise")
    if (getattr(metric, "top_k", 1) or 1) != 1:
        found.append("top_k")
    return ",".join(found)


def name_of(thing: object) -> str:
    """The class's name as it is imported: TorchMetrics marks what is imported from its root with a ``_``."""
    cls = waited_class(type(thing))
    return cls.__name__.lstrip("_") if cls.__module__.endswith("._deprecated") else cls.__name__


def measured(metric: Metric) -> Waits | None:
    """What was counted for the metric's class with options of the same kind, if with this TorchMetrics."""
    version, counts = _counts()
    if version.split(".")[:2] != torchmetrics.__version__.split(".")[:2]:
        return None
    return counts.get((name_of(metric), options_of(metric)))


@lru_cache(maxsize=1)
def _counts() -> tuple[str, dict[tuple[str, str], Waits]]:
    if not MEASURED.exists():
        return "", {}
    with MEASURED.open(encoding="utf-8", newline="") as file:
        version = file.readline().strip()
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    found = {}
    for row in reversed(rows):  # the first of a class's cases is the usual one
        n: dict[str, Any] = {name: int(row[name]) for name in COLUMNS[2:7]}
        n["update_place"], n["compute_place"] = row["update_place"], row["compute_place"] or ""
        found[row["class"], row["options"]] = Waits(**n)
    return version, found
