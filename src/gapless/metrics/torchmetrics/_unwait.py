"""`unwait`, and what it tells of what it did."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import BaseAggregator, CatMetric
from torchmetrics.wrappers.abstract import WrapperMetric

from gapless.metrics.torchmetrics import _sync
from gapless.metrics.torchmetrics._aggregation import neutral_value
from gapless.metrics.torchmetrics._checks import Delivery, counter_of, tell
from gapless.metrics.torchmetrics._classes import (
    changed_methods,
    is_unwaited,
    make_unwaited,
    make_waiting,
    metrics_in,
    waited_class,
)
from gapless.metrics.torchmetrics._registry import table
from gapless.metrics.torchmetrics._relink import SCALARS, in_library

MEASURED = Path(__file__).with_name("measured.tsv")
"""Waits of each class, counted by ``benchmarks/torchmetrics_waits.py``."""

NAN_SAYS = "`nan` is counted on the device and left out with weight 0; numbers are filled in on the device"
CUT_SAYS = "`nan` is cut out by `compute`, not by each `update`; numbers are filled in on the device"


@dataclass(frozen=True)
class Waits:
    """Waits per call as counted on the emulated device: as TorchMetrics has it, and unwaited."""

    update: int
    update_unwaited: int
    compute: int
    compute_unwaited: int


@dataclass(frozen=True)
class MetricChanges:
    """What was changed in one metric, and what of it still waits.

    `path` is where it was found, empty for the metric itself. `waits` are counts for its class with options
    of the same kind, None where none were made.
    """

    path: str
    name: str
    changed: tuple[str, ...]
    left: tuple[str, ...]
    waits: Waits | None = None

    def __str__(self) -> str:
        head = f"{self.path}: {self.name}" if self.path else self.name
        lines = [head]
        if self.waits is not None:
            w = self.waits
            lines.append(
                f"  waits per update {w.update} → {w.update_unwaited}, "
                f"per compute {w.compute} → {w.compute_unwaited} (counted for this class, with usual inputs)"
            )
        lines += [f"  changed: {text}" for text in self.changed] or ["  changed: nothing"]
        lines += [f"  still:   {text}" for text in self.left]
        return "\n".join(lines)


class Unwaited:
    """What `unwait` did: one `MetricChanges` for each metric and collection, readable by ``print``."""

    def __init__(self, changes: list[MetricChanges], things: list[Metric | MetricCollection]) -> None:
        self.changes = tuple(changes)
        self._things = things

    def __iter__(self) -> Iterator[MetricChanges]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        parts = [str(change) for change in self.changes] or ["no metrics found"]
        if table().strange:
            parts.append(
                "left alone, because this version of TorchMetrics has another text for them:\n  "
                + "\n  ".join(table().strange)
            )
        return "\n".join(parts)

    def __repr__(self) -> str:
        return f"<Unwaited: {len(self.changes)} metrics>"

    def undo(self) -> None:
        """Make the metrics what they were. Values they have stay; what was counted is told as warnings."""
        for thing in self._things:
            counter = counter_of(thing)
            if counter is not None:
                found = counter.take_noted()
                for counts in counter.counts.values():
                    found += counter.found(counts.tolist())
                tell([(thing, check, n) for check, n in found], warn_only=True)
            make_waiting(thing)


def unwait(metrics: Any, *, checks: Delivery = "compute", stable_states: bool = False) -> Unwaited:
    """Make TorchMetrics objects wait less, in place; their values stay the same.

    `metrics`: a metric, a collection, a module that has metrics in it, or a dict, list or tuple of such.
    Objects that are unwaited already take the new options. What is not known is left as it is, and the result
    says so.

    `checks` says what happens with checks of values (``nan_strategy``, ``validate_args``), which are counted
    on the device: ``"compute"`` reads and reports them at the end of each ``compute`` (one wait there; a
    ``forward`` does not wait), ``"later"`` reports them when they have arrived by themselves, at the end of a
    later call, with no wait at all; ``"off"`` counts nothing.

    `stable_states`: states keep their storages in ``update``, ``reset``, ``forward`` and ``compute``, as the
    replay of a CUDA graph needs it. Costs one small copy for each state that TorchMetrics binds anew.

    Raises:
        ValueError: `checks` is none of the three.
    """
    if checks not in ("compute", "later", "off"):
        raise ValueError(f'`checks` is {checks!r}; it can be "compute", "later" or "off"')
    changes: list[MetricChanges] = []
    things: list[Metric | MetricCollection] = []
    seen: set[int] = set()
    for path, thing in metrics_in(metrics):
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        things.append(thing)
        own = make_unwaited(thing, checks, stable_states and not _is_run(thing, metrics))
        changes.append(_changes(path, thing, own))
    if not things:
        warnings.warn(f"`unwait` found no metric in a {type(metrics).__name__}", UserWarning, stacklevel=2)
    return Unwaited(changes, things)


def _is_run(thing: Any, metrics: Any) -> bool:
    """Whether `thing` is what a `Running` keeps the states of: it relies on their being bound anew."""
    from torchmetrics.wrappers import Running

    return any(isinstance(one, Running) and one.base_metric is thing for _, one in metrics_in(metrics))


def _changes(path: str, thing: Metric | MetricCollection, own: str) -> MetricChanges:
    cls = waited_class(type(thing))
    changed: list[str] = []
    left: list[str] = []
    if isinstance(thing, MetricCollection):
        changed += [
            "groups are compared with one read, not with one for each pair",
            "states of all metrics are exchanged at once, checks of all are read at once",
        ]
        return MetricChanges(path, cls.__name__, tuple(changed), (), None)
    if isinstance(thing, BaseAggregator):
        _aggregator(thing, changed, left)
    methods = changed_methods(cls)
    for name in ("update", "compute"):
        told = {SCALARS} if isinstance(thing, BaseAggregator) else set()  # it has said so of itself
        changed += [f"{name}: {text}" for text in sorted(methods.get(name, frozenset()) - told)]
    _of_its_own(cls, own, left)
    _syncing(thing, changed, left)
    return MetricChanges(path, cls.__name__, tuple(changed), tuple(left), _measured(thing))


def _aggregator(metric: BaseAggregator, changed: list[str], left: list[str]) -> None:
    if metric.nan_strategy == "disable":
        changed.append("numbers are filled in on the device")
    elif isinstance(metric, CatMetric):
        changed.append(CUT_SAYS)
    elif neutral_value(metric) is not None:
        changed.append(NAN_SAYS)
    else:
        changed.append("numbers are filled in on the device")
        left.append("update: looks for `nan`, because what would stand for one is not known of this class")


def _of_its_own(cls: type, own: str, left: list[str]) -> None:
    if own:
        left.append(f"{own}: replaced on the object, left alone")
    for name in ("update", "compute", "_cast_and_nan_check_input"):
        home = next((one for one in cls.__mro__ if name in vars(one)), None)
        if home is not None and not in_library(home.__module__):
            left.append(f"{name}: written in {home.__module__}.{home.__qualname__}, runs as it is")


def _syncing(metric: Metric, changed: list[str], left: list[str]) -> None:
    if isinstance(metric, WrapperMetric) or not metric._reductions:
        return
    if not _sync.understands(metric):
        left.append("sync: its lists are gathered one tensor at a time")
    elif _sync.announced(metric):
        changed.append("sync: two collectives")
        left.append("sync: one wait, for the shapes of the other ranks")
    else:
        changed.append("sync: one collective")


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


def _measured(metric: Metric) -> Waits | None:
    return _counts().get((waited_class(type(metric)).__name__, options_of(metric)))


@lru_cache(maxsize=1)
def _counts() -> dict[tuple[str, str], Waits]:
    if not MEASURED.exists():
        return {}
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    names = ("update", "update_unwaited", "compute", "compute_unwaited")
    return {
        (row["class"], row["options"]): Waits(*(int(row[name]) for name in names)) for row in reversed(rows)
    }


__all__ = ["MetricChanges", "Unwaited", "Waits", "is_unwaited", "options_of", "unwait"]
