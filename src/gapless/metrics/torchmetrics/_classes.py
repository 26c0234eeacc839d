"""Create the unwaited counterparts of TorchMetrics' and users' classes, and change the class of objects.

An object keeps its states and its identity; only its class is replaced by one whose method resolution order
has a changed class right before each class of TorchMetrics. A user's overrides stay before both, and their
``super()`` finds the changed methods.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import BaseAggregator, CatMetric, MeanMetric
from torchmetrics.wrappers import MinMaxMetric

from gapless.metrics import collection, metric
from gapless.metrics.torchmetrics import _host
from gapless.metrics.torchmetrics._aggregation import UnwaitedAggregator, UnwaitedCat, UnwaitedMean
from gapless.metrics.torchmetrics._checks import Counter, Delivery
from gapless.metrics.torchmetrics._collection import UnwaitedCollection
from gapless.metrics.torchmetrics._constants import fill
from gapless.metrics.torchmetrics._metric import UnwaitedMetric
from gapless.metrics.torchmetrics._origins import ORIGINS, is_unwaited, waited_class, wrapped_function
from gapless.metrics.torchmetrics._relink import RELINKER, in_library
from gapless.metrics.wrappers.multitask import MultitaskWrapper


def _rebuild(cls: type) -> Any:
    """Return an empty unwaited object of `cls`, which a pickle or a copy then fills."""
    return object.__new__(unwaited_class(cls))


class RebuiltMetric(UnwaitedMetric):
    """A metric that is copied and pickled by its original class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (waited_class(type(self)),), self.__getstate__()


class GrowingCollection(UnwaitedCollection):
    """A collection that is copied and pickled by its original class, and unwaits added metrics."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts = cast("tuple[Any, ...]", super().__reduce_ex__(2))
        return (_rebuild, (waited_class(type(self)),), *parts[2:])

    def add_metrics(self, metrics: Any, *additional_metrics: Metric) -> None:
        super().add_metrics(metrics, *additional_metrics)
        unwait_added(self)


MINMAX_NOTE = "the minimum and the maximum are chosen on the GPU"


def _on_same_device(bound: Tensor, value: Tensor) -> Tensor:
    """Return `bound`, 0-dim, on the device of `value`: the first bounds are created on the host."""
    if bound.device.type == "cpu" and value.device.type != "cpu":
        return fill(bound.item(), value.device, bound.dtype)
    return bound.to(value.device)


class UnwaitedMinMax(MinMaxMetric):
    """`MinMaxMetric` that does not compare on the host."""

    def compute(self) -> dict[str, Tensor]:
        value = self._base_metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            return super().compute()
        greatest, least = _on_same_device(self.max_val, value), _on_same_device(self.min_val, value)
        self.max_val = torch.where(greatest < value, value, greatest)
        self.min_val = torch.where(least > value, value, least)
        return {"raw": value, "max": self.max_val, "min": self.min_val}


CHANGED_PARTS: dict[type, type] = {
    Metric: RebuiltMetric,
    MetricCollection: GrowingCollection,
    BaseAggregator: UnwaitedAggregator,
    CatMetric: UnwaitedCat,
    MeanMetric: UnwaitedMean,
    MinMaxMetric: UnwaitedMinMax,
}
"""Hand-written classes that precede TorchMetrics' in the resolution order; others are made by relinking."""

_changed_parts: dict[type, type | None] = dict(CHANGED_PARTS)
OWN_CLASSES = (metric.Metric, collection.MetricCollection, MultitaskWrapper)
"""This package's classes, which pass for TorchMetrics' own and do not wait."""
_unwaited_classes: dict[type, type] = {}


def _changed_part(cls: type) -> type | None:
    """Return the class that precedes `cls` in the resolution order, or None if nothing in it changes."""
    if cls not in _changed_parts:
        methods = {
            name: RELINKER.relink(value)
            for name, value in vars(cls).items()
            if isinstance(value, types.FunctionType)
            and RELINKER.notes_on_reached(value)
            and name != "__init__"
        }
        if _host.is_computed_on_host(cls):
            methods["compute"] = _host.compute_on_host(RELINKER.relink(vars(cls)["compute"]))
        body = {
            **methods,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        _changed_parts[cls] = type(cls)(cls.__name__, (cls,), body) if methods else None
    return _changed_parts[cls]


def _functions(cls: type) -> Iterator[tuple[type, str, types.FunctionType]]:
    """Yield the functions that `cls` inherits from TorchMetrics' classes, with their class and name."""
    for parent in cls.__mro__:
        if in_library(parent.__module__):
            for name, value in vars(parent).items():
                if isinstance(value, types.FunctionType):
                    yield parent, name, value


def changed_methods(cls: type) -> dict[str, frozenset[str]]:
    """Return the methods of `cls` that are changed, with the report's notes on each."""
    notes: dict[str, frozenset[str]] = {}
    for parent, name, function in _functions(cls):
        if name in notes:
            continue
        if name == "compute" and _host.is_computed_on_host(parent):
            notes[name] = frozenset({_host.HOST_NOTE})
        elif name == "compute" and parent is MinMaxMetric:
            notes[name] = frozenset({MINMAX_NOTE})
        elif RELINKER.notes_on_reached(function):
            notes[name] = RELINKER.notes_on_reached(function)
    return notes


def unmatched_functions(cls: type) -> frozenset[str]:
    """Return names of functions that `cls` calls and whose source is not the one a replacement expects."""
    return frozenset(
        name for _, _, function in _functions(cls) for name in RELINKER.unmatched_reached(function)
    )


def unwaited_class(cls: type) -> type:
    """Return the unwaited class for objects of `cls`; the same each time."""
    if cls in ORIGINS:
        return cls
    if cls not in _unwaited_classes:
        library = [parent for parent in cls.__mro__ if in_library(parent.__module__)]
        parts = [part for parent in library if (part := _changed_part(parent))]
        bases = parts if parts and issubclass(parts[0], cls) else [cls, *parts]
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        unwaited = type(cls)(cls.__name__, tuple(bases), body)
        _unwaited_classes[cls] = unwaited
        ORIGINS[unwaited] = cls
    return _unwaited_classes[cls]


def metrics_in(thing: Any, path: str = "") -> Iterator[tuple[str, Metric | MetricCollection]]:
    """Yield every metric and collection in `thing`, a module, dict, list or tuple, with its path."""
    if isinstance(thing, nn.Module):
        for name, module in thing.named_modules(prefix=path):
            if not isinstance(module, OWN_CLASSES) and isinstance(module, (Metric, MetricCollection)):
                yield name, module
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from metrics_in(value, f"{path}.{key}" if path else str(key))
    elif isinstance(thing, (list, tuple)):
        for i, value in enumerate(thing):
            yield from metrics_in(value, f"{path}.{i}" if path else str(i))


def exchange_class(thing: Metric | MetricCollection, cls: type) -> str:
    """Set the class of `thing` to `cls`; return the names of methods left alone because the object
    replaces them.
    """
    if type(thing) is cls:
        return ""
    own = [
        name
        for name in ("update", "compute")
        if isinstance(thing, Metric) and not _is_plainly_wrapped(thing, name)
    ]
    object.__setattr__(thing, "__class__", cls)
    if isinstance(thing, Metric):
        wraps = {"update": thing._wrap_update, "compute": thing._wrap_compute}
        for name in wraps.keys() - set(own):
            thing.__dict__.pop(name, None)
            setattr(thing, name, wraps[name](getattr(thing, name)))
    return ", ".join(f"`{name}`" for name in sorted(own))


def _is_plainly_wrapped(metric: Metric, name: str) -> bool:
    """Whether the object's `update` or `compute` is the one that `Metric.__init__` set."""
    return name not in metric.__dict__ or wrapped_function(metric, name) is getattr(type(metric), name, None)


def make_unwaited(thing: Metric | MetricCollection, delivery: Delivery, stable_states: bool) -> str:
    """Unwait one object, not its parts. Returns what `exchange_class` returns."""
    unchanged = exchange_class(thing, unwaited_class(type(thing)))
    if isinstance(thing, Metric):
        counter = thing.__dict__.get("_unwaited_checks")
        if isinstance(counter, Counter):
            counter.delivery = delivery
        else:
            thing.__dict__["_unwaited_checks"] = Counter(delivery, type(thing).__name__)
        thing.__dict__["_unwaited_stable"] = stable_states
    else:
        thing.__dict__["_unwaited_options"] = (delivery, stable_states)
    return unchanged


def make_waiting(thing: Metric | MetricCollection) -> None:
    """Undo `make_unwaited`."""
    exchange_class(thing, waited_class(type(thing)))
    for name in ("_unwaited_checks", "_unwaited_stable", "_unwaited_options"):
        thing.__dict__.pop(name, None)


def unwait_added(collection: MetricCollection) -> None:
    """Unwait metrics that were added to an unwaited collection."""
    options = collection.__dict__.get("_unwaited_options")
    if options is not None:
        for _, metric in metrics_in(collection):
            if not is_unwaited(metric):
                make_unwaited(metric, *options)
