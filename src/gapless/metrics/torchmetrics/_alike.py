"""Find metrics of a collection that get the same states from a batch, by their code and options, never by
values.

Two metrics are alike if the same code updates them and all attributes that this code reads are equal.
TorchMetrics compares values after the first batch, which can be equal by chance.
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

COMPARABLE_TYPES = (type(None), bool, int, float, str, torch.dtype, torch.device)
"""Types whose values can be compared."""
BASE_CLASSES = (object, nn.Module, Metric, UnwaitedMetric)
"""Classes whose methods share names with those of tensors (``to``, ``float``): calls to them are ignored."""

_tensor_keys: dict[int, tuple[Any, int, Any]] = {}


def group_alike(collection: MetricCollection) -> list[list[Metric]]:
    """Group the metrics of `collection` whose `forward` can share an update, in order of the collection.

    A metric that can share with no other is its own group.
    """
    groups: dict[Any, list[Metric]] = {}
    for metric in collection._modules.values():
        key = sharing_key(metric)
        groups.setdefault(("alone", id(metric)) if key is None else key, []).append(metric)  # type: ignore[arg-type]
    return list(groups.values())


def sharing_key(metric: Any) -> tuple[Any, ...] | None:
    """Return a hashable key of everything that decides the states a batch gives `metric`; None if unknown."""
    cls = type(metric)
    shares = (
        isinstance(metric, UnwaitedMetric)
        and cls.forward is UnwaitedMetric.forward
        and metric.full_state_update is False
        and not metric.dist_sync_on_step
        and not metric._modules
        and not metric._parameters
        and _has_plain_update(metric)
    )
    names = _names_read_by_update(cls) if shares else None  # type: ignore[arg-type]
    if names is None:
        return None
    key_parts: list[Any] = [cls.update, metric.device, metric.compute_on_cpu]
    for name in names:
        is_comparable, value = (
            _comparison_key(getattr(metric, name, None)) if name not in metric._defaults else (True, name)
        )
        if not is_comparable:
            return None
        key_parts.append((name, value))
    for name, default in metric._defaults.items():
        form = _default_key(metric, default)
        if form is None:
            return None
        key_parts.append((name, form, metric._reductions[name]))
    return tuple(key_parts)


def _default_key(metric: Metric, default: Any) -> Any:
    """Return a key of a state's default; for library classes, dtype and shape are enough."""
    if not isinstance(default, Tensor):
        return "list"
    if in_library(type(metric).__module__):
        return default.dtype, tuple(default.shape)
    return _comparison_key(default)[1]


def _has_plain_update(metric: Metric) -> bool:
    """Whether the object's `update` is that of its class, wrapped as usual and not replaced."""
    return wrapped_function(metric, "update") is type(metric).update


def _comparison_key(value: Any) -> tuple[bool, Any]:
    """Return whether a value can be compared, and its key: with the type, as 1 and True are two options."""
    if isinstance(value, COMPARABLE_TYPES):
        return True, (type(value), value)
    if isinstance(value, (tuple, list)):
        parts = [_comparison_key(element) for element in value]
        return all(is_comparable for is_comparable, _ in parts), (
            type(value),
            tuple(part for _, part in parts),
        )
    if isinstance(value, types.FunctionType):
        return True, value
    if isinstance(value, Tensor) and not value.requires_grad and value.numel() <= 4096:
        return True, _tensor_key(value)
    return False, None


def _tensor_key(tensor: Tensor) -> Any:
    """Return a key of a constant tensor's dtype, device, shape and values, read once."""
    cached = _tensor_keys.get(id(tensor))
    if cached is not None and cached[0]() is tensor and cached[1] == tensor._version:
        return cached[2]
    if len(_tensor_keys) > 1024:
        _tensor_keys.clear()
    content = (tensor.dtype, tensor.device, tuple(tensor.shape), str(tensor.flatten().tolist()))
    _tensor_keys[id(tensor)] = (weakref.ref(tensor), tensor._version, content)
    return content


@cache
def _names_read_by_update(cls: Any) -> tuple[str, ...] | None:
    """Return the attribute names that the code of ``cls.update`` may read; None if unknown.

    These are all names in its code that are not functions of its class, and those in the functions of the
    class that it may call.
    """
    names: dict[str, None] = {}
    visited: set[Any] = set()
    waiting: list[Any] = [cls.update]
    while waiting:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType):
            return None
        if function in visited:
            continue
        visited.add(function)
        for name in names_in(function):
            home = next((parent for parent in cls.__mro__ if name in vars(parent)), object)
            attribute = vars(home).get(name)
            if isinstance(attribute, (staticmethod, classmethod)):
                attribute = attribute.__func__
            if isinstance(attribute, types.FunctionType) and home in BASE_CLASSES:
                continue
            if isinstance(attribute, types.FunctionType):
                waiting.append(attribute)
            elif isinstance(attribute, property):
                names[name] = None
            elif name in ("__dict__", "getattr", "setattr", "vars", "super"):
                return None
            else:
                names[name] = None
    return tuple(names)
