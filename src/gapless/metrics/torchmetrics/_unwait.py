"""`unwait`, its undoing, and the description of the changes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torchmetrics
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import BaseAggregator, CatMetric
from torchmetrics.wrappers.abstract import WrapperMetric

from gapless.metrics.torchmetrics import _sync
from gapless.metrics.torchmetrics._aggregation import neutral_value
from gapless.metrics.torchmetrics._checks import Delivery, counter_of, deliver_failures
from gapless.metrics.torchmetrics._classes import (
    changed_methods,
    make_unwaited,
    make_waiting,
    metrics_in,
    unmatched_functions,
)
from gapless.metrics.torchmetrics._host import is_computed_on_host
from gapless.metrics.torchmetrics._measured import WaitCounts, name_of, waits_of
from gapless.metrics.torchmetrics._origins import waited_class
from gapless.metrics.torchmetrics._own_code import find_waiting_lines, source_location
from gapless.metrics.torchmetrics._relink import FILL_NOTE, in_library
from gapless.metrics.torchmetrics._report import MetricChanges, render_changes

NAN_NOTE = "update: `nan` is counted on the GPU and excluded with weight 0; numbers are filled in there"
CUT_NOTE = "update: `nan` is removed in compute, not in update; numbers are filled in on the GPU"
NUMBERS_NOTE = "update: numbers are filled in on the GPU"
COLLECTION_NOTES = (
    "groups are compared with one read instead of one per pair",
    "forward: identical metrics share one update",
    "the states of all metrics are exchanged at once, and all checks are read at once",
)


class Unwaited:
    """The changes made by `unwait`: one `MetricChanges` per metric and collection, readable by ``print``.

    As a context manager it undoes the changes at the end of its block.
    """

    def __init__(self, changes: list[MetricChanges], things: list[Metric | MetricCollection]) -> None:
        self.changes = tuple(changes)
        self._things = things

    def __iter__(self) -> Iterator[MetricChanges]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "no metrics found"
        strange = sorted(
            {name for thing in self._things for name in unmatched_functions(waited_class(type(thing)))}
        )
        return "\n".join(render_changes(self.changes, strange, torchmetrics.__version__))

    def __repr__(self) -> str:
        return f"<Unwaited: {len(self.changes)} metrics>"

    def __enter__(self) -> Unwaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Restore the metrics' classes. Values are kept; unreported failed checks become warnings."""
        for thing in self._things:
            _undo(thing)


def rewait(metrics: Any) -> None:
    """Undo `unwait` for the same kinds of arguments, including copies and unpickled metrics.

    Values are kept, and unreported failed checks become warnings. Other objects are not changed.
    """
    for _, thing in list(metrics_in(metrics)):
        _undo(thing)


def _undo(thing: Metric | MetricCollection) -> None:
    counter = counter_of(thing)
    if counter is not None:
        failures = counter.take_noted() + counter.failed_checks(counter.take_arrived(wait=True))
        for counts in counter.counts.values():
            failures += counter.failed_checks(counts.tolist())
        deliver_failures([(thing, check, n) for check, n in failures], warn_only=True)
    make_waiting(thing)


def unwait(metrics: Any, *, checks: Delivery = "compute", stable_states: bool = False) -> Unwaited:
    """Make TorchMetrics objects wait less, in place; their values stay the same.

    `metrics`: a metric, a collection, a module that contains metrics, or a dict, list or tuple of these.
    Objects that are unwaited already take the new options. Unknown code is not changed, and the result says
    so.

    `checks` says how checks of values (``nan_strategy``, ``validate_args``), which are counted on the device,
    are reported: ``"compute"`` reads and reports them at the end of each ``compute`` (one wait there; a
    ``forward`` does not wait), ``"later"`` reports them at the end of a later call once they have arrived,
    with no wait at all; ``"off"`` counts nothing.

    `stable_states`: states keep their storages in ``update``, ``reset``, ``forward`` and ``compute``, as
    replaying a CUDA graph requires. Costs one small copy for each state that TorchMetrics rebinds.

    Raises:
        ValueError: `checks` is none of the three.
    """
    if checks not in ("compute", "later", "off"):
        raise ValueError(f'`checks` is {checks!r}, but must be "compute", "later" or "off"')
    changes: list[MetricChanges] = []
    things: list[Metric | MetricCollection] = []
    seen_ids: set[int] = set()
    for path, thing in metrics_in(metrics):
        if id(thing) in seen_ids:
            continue
        seen_ids.add(id(thing))
        things.append(thing)
        own = make_unwaited(thing, checks, stable_states and not _is_run_by_wrapper(thing, metrics))
        changes.append(_describe_changes(path, thing, own))
    if not things:
        warnings.warn(f"`unwait` found no metric in a {type(metrics).__name__}", UserWarning, stacklevel=2)
    return Unwaited(changes, things)


def _is_run_by_wrapper(thing: Any, metrics: Any) -> bool:
    """Whether a `Running` keeps the states of `thing`: it relies on states being rebound."""
    from torchmetrics.wrappers import Running

    return any(
        isinstance(metric, Running) and metric.base_metric is thing for _, metric in metrics_in(metrics)
    )


def _describe_changes(path: str, thing: Metric | MetricCollection, own: str) -> MetricChanges:
    """Describe what was changed in `thing` and what still waits; `own` names its replaced methods."""
    name = name_of(thing)
    if isinstance(thing, MetricCollection):
        return MetricChanges(path, name, COLLECTION_NOTES, ())
    cls = waited_class(type(thing))
    changed: list[str] = []
    left: list[str] = []
    if isinstance(thing, BaseAggregator):
        _describe_aggregator(thing, changed, left)
    methods = changed_methods(cls)
    for method in ("update", "compute"):
        notes_given = {FILL_NOTE} if isinstance(thing, BaseAggregator) else set()  # it has said so of itself
        changed += [f"{method}: {text}" for text in sorted(methods.get(method, frozenset()) - notes_given)]
    _describe_own_code(cls, own, left)
    _describe_sync(thing, changed, left)
    waits = waits_of(thing)
    if waits is not None:
        _describe_waits(cls, waits, left)
    return MetricChanges(path, name, tuple(changed), tuple(left), waits)


def _describe_aggregator(metric: BaseAggregator, changed: list[str], left: list[str]) -> None:
    if metric.nan_strategy == "disable":
        changed.append(NUMBERS_NOTE)
    elif isinstance(metric, CatMetric):
        changed.append(CUT_NOTE)
    elif neutral_value(metric) is not None:
        changed.append(NAN_NOTE)
    else:
        changed.append(NUMBERS_NOTE)
        left.append("update: checks for `nan`, because its replacement value is not known for this class")


def _describe_waits(cls: type, waits: WaitCounts, left: list[str]) -> None:
    if issubclass(cls, CatMetric):
        left.append("compute: 1 sync, to remove `nan`")
        return
    for method, n, place in (
        ("update", waits.update_unwaited, waits.update_place),
        ("compute", waits.compute_unwaited, waits.compute_place),
    ):
        if n:
            if method == "compute" and any(is_computed_on_host(parent) for parent in cls.__mro__):
                left.append("compute: 1 sync, to copy the states")
                continue
            at = f"{' at' if n == 1 else 's, most at'} {place}" if place else "s"[n == 1 :]
            left.append(f"{method}: {n} wait{at}")


def _describe_own_code(cls: type, own: str, left: list[str]) -> None:
    if own:
        left.append(f"{own}: replaced on the object, left unchanged")
    for name in ("update", "compute", "forward", "_cast_and_nan_check_input"):
        home = next((parent for parent in cls.__mro__ if name in vars(parent)), None)
        if home is None or in_library(home.__module__) or home.__module__.startswith("torch."):
            continue
        method = vars(home)[name]
        text = f"{name}: {home.__name__}'s own ({source_location(method) or home.__module__}), runs as it is"
        lines = find_waiting_lines(method)
        if lines:
            text += "; syncs there where it meets GPU tensors: " + "; ".join(lines)
        left.append(text)


def _describe_sync(metric: Metric, changed: list[str], left: list[str]) -> None:
    if isinstance(metric, WrapperMetric) or not metric._reductions:
        return
    if not _sync.can_exchange(metric):
        left.append("sync: its lists are gathered one tensor at a time")
    elif _sync.has_varying_shapes(metric):
        changed.append("sync: two collectives")
        left.append("sync: one sync, for the shapes of the other ranks")
    else:
        changed.append("sync: one collective")


__all__ = ["MetricChanges", "Unwaited", "rewait", "unwait"]
