"""Classes that differ from TorchMetrics' and the user's in what waits, and objects moved to them and back.

An object keeps its states, its name and its place among other objects: only its class is exchanged, for one
whose order of resolution has a changed class right before each class of TorchMetrics. What a user has
overridden stays before both, and its ``super()`` finds what was changed.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, cast

from torch import nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import BaseAggregator, CatMetric, MeanMetric
from torchmetrics.wrappers import MinMaxMetric

from gapless.metrics import collection, metric
from gapless.metrics.torchmetrics import _host
from gapless.metrics.torchmetrics._aggregation import UnwaitedAggregator, UnwaitedCat, UnwaitedMean
from gapless.metrics.torchmetrics._checks import Counter, Delivery
from gapless.metrics.torchmetrics._collection import UnwaitedCollection
from gapless.metrics.torchmetrics._metric import UnwaitedMetric
from gapless.metrics.torchmetrics._origins import ORIGINS, is_unwaited, waited_class, wrapped_function
from gapless.metrics.torchmetrics._relink import RELINKER, in_library
from gapless.metrics.torchmetrics._wrappers import KEEPS, UnwaitedMinMax
from gapless.metrics.wrappers.multitask import MultitaskWrapper


def _rebuild(cls: type) -> Any:
    """An empty object of `cls`, unwaited: what a pickle or a copy is filled into."""
    return object.__new__(unwaited_class(cls))


class RebuiltMetric(UnwaitedMetric):
    """Copied and pickled by the class it was made of."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (waited_class(type(self)),), self.__getstate__()


class GrowingCollection(UnwaitedCollection):
    """Copied and pickled by the class it was made of; what is added to it is unwaited, too."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts = cast("tuple[Any, ...]", super().__reduce_ex__(2))
        return (_rebuild, (waited_class(type(self)),), *parts[2:])

    def add_metrics(self, metrics: Any, *additional_metrics: Metric) -> None:
        super().add_metrics(metrics, *additional_metrics)
        unwait_added(self)


WRITTEN: dict[type, type] = {
    Metric: RebuiltMetric,
    MetricCollection: GrowingCollection,
    BaseAggregator: UnwaitedAggregator,
    CatMetric: UnwaitedCat,
    MeanMetric: UnwaitedMean,
    MinMaxMetric: UnwaitedMinMax,
}
"""Classes of TorchMetrics and what stands before them. For the rest it is made of relinked methods."""

_parts: dict[type, type | None] = dict(WRITTEN)
OURS = (metric.Metric, collection.MetricCollection, MultitaskWrapper)
"""What passes for TorchMetrics' own, and does not wait."""
_classes: dict[type, type] = {}


def _part(cls: type) -> type | None:
    """What stands before `cls` in the order of resolution, or None if nothing in it changes."""
    if cls not in _parts:
        methods = {
            name: RELINKER.copy(value)
            for name, value in vars(cls).items()
            if isinstance(value, types.FunctionType) and RELINKER.reaches(value) and name != "__init__"
        }
        if _host.on_host(cls):
            methods["compute"] = _host.from_host(RELINKER.copy(vars(cls)["compute"]))
        body = {
            **methods,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        _parts[cls] = type(cls)(cls.__name__, (cls,), body) if methods else None
    return _parts[cls]


def _functions(cls: type) -> Iterator[tuple[type, str, types.FunctionType]]:
    """The functions that `cls` has from TorchMetrics' classes, with these and their names."""
    for one in cls.__mro__:
        if in_library(one.__module__):
            for name, value in vars(one).items():
                if isinstance(value, types.FunctionType):
                    yield one, name, value


def changed_methods(cls: type) -> dict[str, frozenset[str]]:
    """The methods of `cls` that are relinked, and what the report says of what they reach."""
    found: dict[str, frozenset[str]] = {}
    for one, name, function in _functions(cls):
        if name in found:
            continue
        if name == "compute" and _host.on_host(one):
            found[name] = frozenset({_host.SAYS})
        elif name == "compute" and one is MinMaxMetric:
            found[name] = frozenset({KEEPS})
        elif RELINKER.reaches(function):
            found[name] = RELINKER.reaches(function)
    return found


def left_alone(cls: type) -> frozenset[str]:
    """Names of functions that `cls` calls and that have another text than what was to be replaced."""
    return frozenset(name for _, _, function in _functions(cls) for name in RELINKER.meets(function))


def unwaited_class(cls: type) -> type:
    """The class an object of `cls` is given; the same each time."""
    if cls in ORIGINS:
        return cls
    if cls not in _classes:
        library = [one for one in cls.__mro__ if in_library(one.__module__)]
        parts = [part for one in library if (part := _part(one))]
        bases = parts if parts and issubclass(parts[0], cls) else [cls, *parts]
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        made = type(cls)(cls.__name__, tuple(bases), body)
        _classes[cls] = made
        ORIGINS[made] = cls
    return _classes[cls]


def metrics_in(thing: Any, path: str = "") -> Iterator[tuple[str, Metric | MetricCollection]]:
    """Every metric and collection in `thing`, a module, dict, list or tuple, with its path."""
    if isinstance(thing, nn.Module):
        for name, module in thing.named_modules(prefix=path):
            if not isinstance(module, OURS) and isinstance(module, (Metric, MetricCollection)):
                yield name, module
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from metrics_in(value, f"{path}.{key}" if path else str(key))
    elif isinstance(thing, (list, tuple)):
        for i, value in enumerate(thing):
            yield from metrics_in(value, f"{path}.{i}" if path else str(i))


def exchange_class(thing: Metric | MetricCollection, cls: type) -> str:
    """Give `thing` the class `cls`. Says, if so, what was left alone because it had been replaced on the
    object.
    """
    if type(thing) is cls:
        return ""
    own = [
        name
        for name in ("update", "compute")
        if isinstance(thing, Metric) and not _plainly_wrapped(thing, name)
    ]
    object.__setattr__(thing, "__class__", cls)
    if isinstance(thing, Metric):
        wraps = {"update": thing._wrap_update, "compute": thing._wrap_compute}
        for name in wraps.keys() - set(own):
            thing.__dict__.pop(name, None)
            setattr(thing, name, wraps[name](getattr(thing, name)))
    return ", ".join(f"`{name}`" for name in sorted(own))


def _plainly_wrapped(metric: Metric, name: str) -> bool:
    """Whether the object's own `update` or `compute` is the one that `Metric.__init__` put there."""
    return name not in metric.__dict__ or wrapped_function(metric, name) is getattr(type(metric), name, None)


def make_unwaited(thing: Metric | MetricCollection, delivery: Delivery, stable_states: bool) -> str:
    """Unwait one object; its parts are objects of their own. Returns what `exchange_class` says."""
    said = exchange_class(thing, unwaited_class(type(thing)))
    if isinstance(thing, Metric):
        known = thing.__dict__.get("_unwaited_checks")
        if isinstance(known, Counter):
            known.delivery = delivery
        else:
            thing.__dict__["_unwaited_checks"] = Counter(delivery, type(thing).__name__)
        thing.__dict__["_unwaited_stable"] = stable_states
    else:
        thing.__dict__["_unwaited_options"] = (delivery, stable_states)
    return said


def make_waiting(thing: Metric | MetricCollection) -> None:
    """Undo `make_unwaited`."""
    exchange_class(thing, waited_class(type(thing)))
    for name in ("_unwaited_checks", "_unwaited_stable", "_unwaited_options"):
        thing.__dict__.pop(name, None)


def unwait_added(collection: MetricCollection) -> None:
    """Unwait what was added to a collection that is unwaited."""
    options = collection.__dict__.get("_unwaited_options")
    if options is not None:
        for _, metric in metrics_in(collection):
            if not is_unwaited(metric):
                make_unwaited(metric, *options)
