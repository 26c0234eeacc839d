"""`unwait`, the way back, and what is told of what was done."""

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
from gapless.metrics.torchmetrics._checks import Delivery, counter_of, tell
from gapless.metrics.torchmetrics._classes import (
    changed_methods,
    left_alone,
    make_unwaited,
    make_waiting,
    metrics_in,
)
from gapless.metrics.torchmetrics._host import on_host
from gapless.metrics.torchmetrics._measured import Waits, measured, name_of
from gapless.metrics.torchmetrics._origins import waited_class
from gapless.metrics.torchmetrics._own_code import waiting_lines, where
from gapless.metrics.torchmetrics._relink import SCALARS, in_library
from gapless.metrics.torchmetrics._report import MetricChanges, render

NAN_SAYS = "update: `nan` is counted on the GPU and excluded with weight 0; numbers are filled in there"
CUT_SAYS = "update: `nan` is removed in compute, not in update; numbers are filled in on the GPU"
FILL_SAYS = "update: numbers are filled in on the GPU"
COLLECTION_SAYS = (
    "groups are compared with one read instead of one per pair",
    "forward: identical metrics share one update",
    "the states of all metrics are exchanged at once, and all checks are read at once",
)


class Unwaited:
    """What `unwait` did: one `MetricChanges` for each metric and collection, readable by ``print``.

    As a context manager it undoes at the end of its block what was done.
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
        strange = sorted({name for thing in self._things for name in left_alone(waited_class(type(thing)))})
        return "\n".join(render(self.changes, strange, torchmetrics.__version__))

    def __repr__(self) -> str:
        return f"<Unwaited: {len(self.changes)} metrics>"

    def __enter__(self) -> Unwaited:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Make the metrics what they were. Values they have stay; what was counted is told as warnings."""
        for thing in self._things:
            _undo(thing)


def rewait(metrics: Any) -> None:
    """Undo `unwait` for whatever it takes: copies and what was read from a pickle, too.

    Values stay, and what was counted and not yet told is told as warnings. What is not unwaited stays as it
    is.
    """
    for _, thing in list(metrics_in(metrics)):
        _undo(thing)


def _undo(thing: Metric | MetricCollection) -> None:
    counter = counter_of(thing)
    if counter is not None:
        found = counter.take_noted() + counter.found(counter.arrived(wait=True))
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
        raise ValueError(f'`checks` is {checks!r}, but must be "compute", "later" or "off"')
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
    name = name_of(thing)
    if isinstance(thing, MetricCollection):
        return MetricChanges(path, name, COLLECTION_SAYS, ())
    cls = waited_class(type(thing))
    changed: list[str] = []
    left: list[str] = []
    if isinstance(thing, BaseAggregator):
        _aggregator(thing, changed, left)
    methods = changed_methods(cls)
    for method in ("update", "compute"):
        told = {SCALARS} if isinstance(thing, BaseAggregator) else set()  # it has said so of itself
        changed += [f"{method}: {text}" for text in sorted(methods.get(method, frozenset()) - told)]
    _of_its_own(cls, own, left)
    _syncing(thing, changed, left)
    waits = measured(thing)
    if waits is not None:
        _counted(cls, waits, left)
    return MetricChanges(path, name, tuple(changed), tuple(left), waits)


def _aggregator(metric: BaseAggregator, changed: list[str], left: list[str]) -> None:
    if metric.nan_strategy == "disable":
        changed.append(FILL_SAYS)
    elif isinstance(metric, CatMetric):
        changed.append(CUT_SAYS)
    elif neutral_value(metric) is not None:
        changed.append(NAN_SAYS)
    else:
        changed.append(FILL_SAYS)
        left.append("update: checks for `nan`, because its replacement value is not known for this class")


def _counted(cls: type, waits: Waits, left: list[str]) -> None:
    if issubclass(cls, CatMetric):
        left.append("compute: 1 sync, to remove `nan`")
        return
    for method, n, place in (
        ("update", waits.update_unwaited, waits.update_place),
        ("compute", waits.compute_unwaited, waits.compute_place),
    ):
        if n:
            if method == "compute" and any(on_host(one) for one in cls.__mro__):
                left.append("compute: 1 sync, to copy the states")
                continue
            at = f"{' at' if n == 1 else 's, most at'} {place}" if place else "s"[n == 1 :]
            left.append(f"{method}: {n} wait{at}")


def _of_its_own(cls: type, own: str, left: list[str]) -> None:
    if own:
        left.append(f"{own}: replaced on the object, left unchanged")
    for name in ("update", "compute", "forward", "_cast_and_nan_check_input"):
        home = next((one for one in cls.__mro__ if name in vars(one)), None)
        if home is None or in_library(home.__module__) or home.__module__.startswith("torch."):
            continue
        method = vars(home)[name]
        text = f"{name}: {home.__name__}'s own ({where(method) or home.__module__}), runs as it is"
        lines = waiting_lines(method)
        if lines:
            text += "; syncs there where it meets GPU tensors: " + "; ".join(lines)
        left.append(text)


def _syncing(metric: Metric, changed: list[str], left: list[str]) -> None:
    if isinstance(metric, WrapperMetric) or not metric._reductions:
        return
    if not _sync.understands(metric):
        left.append("sync: its lists are gathered one tensor at a time")
    elif _sync.announced(metric):
        changed.append("sync: two collectives")
        left.append("sync: one sync, for the shapes of the other ranks")
    else:
        changed.append("sync: one collective")


__all__ = ["MetricChanges", "Unwaited", "rewait", "unwait"]
