"""Which metrics of a collection have the same states of a batch: told by their make, never by values.

Two metrics are alike where the same code updates them and all that this code looks at on them is the same.
TorchMetrics compares the values after the first batch, which can be the same by chance.
"""

from __future__ import annotations

import types
import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from gapless.metrics.torchmetrics._metric import UnwaitedMetric
from gapless.metrics.torchmetrics._origins import wrapped_function
from gapless.metrics.torchmetrics._relink import in_library, names_in

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
BASES = (object, nn.Module, Metric, UnwaitedMetric)
"""Their methods share names with those of tensors (``to``, ``float``) and tell metrics of no kind apart."""

_contents: dict[int, tuple[Any, int, Any]] = {}


def groups_alike(collection: MetricCollection) -> list[list[Metric]]:
    """The metrics of `collection` in groups whose `forward` can share an update, in order of the collection.

    A metric that can share with none is a group of its own.
    """
    groups: dict[Any, list[Metric]] = {}
    for metric in collection._modules.values():
        make = make_of(metric)
        groups.setdefault(("alone", id(metric)) if make is None else make, []).append(metric)  # type: ignore[arg-type]
    return list(groups.values())


def make_of(metric: Any) -> tuple[Any, ...] | None:
    """What decides the states that a batch gives `metric`, hashable; None where that cannot be told."""
    cls = type(metric)
    shares = (
        isinstance(metric, UnwaitedMetric)
        and cls.forward is UnwaitedMetric.forward
        and metric.full_state_update is False
        and not metric.dist_sync_on_step
        and not metric._modules
        and not metric._parameters
        and _own_update_is_plain(metric)
    )
    read = _attributes_read(cls) if shares else None  # type: ignore[arg-type]
    if read is None:
        return None
    found: list[Any] = [cls.update, metric.device, metric.compute_on_cpu]
    for name in read:
        known, value = _told(getattr(metric, name, None)) if name not in metric._defaults else (True, name)
        if not known:
            return None
        found.append((name, value))
    for name, default in metric._defaults.items():
        form = _start(metric, default)
        if form is None:
            return None
        found.append((name, form, metric._reductions[name]))
    return tuple(found)


def _start(metric: Metric, default: Any) -> Any:
    """What tells a state's default from others; the library's own begin alike where their form is alike."""
    if not isinstance(default, Tensor):
        return "list"
    if in_library(type(metric).__module__):
        return default.dtype, tuple(default.shape)
    return _told(default)[1]


def _own_update_is_plain(metric: Metric) -> bool:
    """Whether the object's `update` is its class's, wrapped as ever and not replaced by someone."""
    return wrapped_function(metric, "update") is type(metric).update


def _told(value: Any) -> tuple[bool, Any]:
    """Whether a value can be compared, and what to compare: with its type, as 1 and True are two options."""
    if isinstance(value, PLAIN):
        return True, (type(value), value)
    if isinstance(value, (tuple, list)):
        parts = [_told(one) for one in value]
        return all(known for known, _ in parts), (type(value), tuple(part for _, part in parts))
    if isinstance(value, types.FunctionType):
        return True, value
    if isinstance(value, Tensor) and not value.requires_grad and value.numel() <= 4096:
        return True, _content(value)
    return False, None


def _content(tensor: Tensor) -> Any:
    """A constant tensor's form and values, read once."""
    known = _contents.get(id(tensor))
    if known is not None and known[0]() is tensor and known[1] == tensor._version:
        return known[2]
    if len(_contents) > 1024:
        _contents.clear()
    content = (tensor.dtype, tensor.device, tuple(tensor.shape), str(tensor.flatten().tolist()))
    _contents[id(tensor)] = (weakref.ref(tensor), tensor._version, content)
    return content


@cache
def _attributes_read(cls: Any) -> tuple[str, ...] | None:
    """Names that the code of ``cls.update`` may read on the object; None where that cannot be told.

    That is every name in its code that is no function of its class, and those in the functions of the class
    that it may call.
    """
    names: dict[str, None] = {}
    seen: set[Any] = set()
    waiting: list[Any] = [cls.update]
    while waiting:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType):
            return None
        if function in seen:
            continue
        seen.add(function)
        for name in names_in(function):
            home = next((one for one in cls.__mro__ if name in vars(one)), object)
            found = vars(home).get(name)
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            if isinstance(found, types.FunctionType) and home in BASES:
                continue
            if isinstance(found, types.FunctionType):
                waiting.append(found)
            elif isinstance(found, property):
                names[name] = None
            elif name in ("__dict__", "getattr", "setattr", "vars", "super"):
                return None
            else:
                names[name] = None
    return tuple(names)
