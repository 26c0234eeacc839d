"""Nested values that contain tensors: dicts, lists, tuples, named tuples and dataclasses."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_RESULT = "is_metric_result"
"""Attribute of the storages of a metric's results."""
_LEAVES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types that are no containers, recognized quickly: every operator's arguments are checked."""


def children(value: Any) -> Iterable[Any] | None:
    """Return the items of the container `value`, in order; None if it is no container."""
    if isinstance(value, (list, tuple)):
        return value
    if type(value) in _LEAVES:
        return None
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
        ]
    return None


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in `value`, in order.

    >>> [tensor.item() for tensor in tensors({"loss": torch.ones(()), "others": [torch.zeros(()), 3]})]
    [1.0, 0.0]
    """
    if isinstance(value, Tensor):
        yield value
        return
    for part in children(value) or ():
        if isinstance(part, Tensor):
            yield part
        elif type(part) not in _LEAVES:
            yield from tensors(part)


def map_tensors(
    value: Any, change: Callable[[Tensor], Any], other: Callable[[Any], Any] | None = None
) -> Any:
    """Return a copy of `value` with `change` applied to each tensor, and `other` to everything that is no
    container.

    >>> map_tensors({"losses": [torch.ones(()), 3]}, Tensor.item)
    {'losses': [1.0, 3]}
    """
    if isinstance(value, Tensor):
        return change(value)
    held = children(value)
    if held is None:
        return value if other is None else other(value)
    return rebuild(value, [map_tensors(part, change, other) for part in held])


def rebuild(value: Any, held: list[Any]) -> Any:
    """Return a container like `value` that holds the items `held` instead, in the order of :func:`children`.

    Neither ``__init__`` nor ``__post_init__`` of a dataclass runs again.
    """
    if type(value) is list:
        return held
    if isinstance(value, (list, tuple)):
        return type(value)(*held) if hasattr(value, "_fields") else type(value)(held)
    if isinstance(value, Mapping):
        return _rebuild_mapping(value, dict(zip(value, held, strict=True)))
    copied = copy.copy(value)
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    for name, part in zip(names, held, strict=True):
        object.__setattr__(copied, name, part)
    return copied


def _rebuild_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    try:
        copied: Any = copy.copy(value)
        for key, part in items.items():
            copied[key] = part
    except TypeError:  # it cannot be written
        return items
    return copied


def mark_result(tensor: Tensor) -> Tensor:
    """Return `tensor`, the result of a metric, marked so that a check can say how to read it."""
    if tensor.is_cuda and not torch.compiler.is_compiling():
        with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
            setattr(tensor.untyped_storage(), _RESULT, True)
    return tensor


def is_result(value: Any) -> bool:
    """Whether `value` is a tensor, or a view of one, that `mark_result` marked."""
    try:
        return isinstance(value, Tensor) and hasattr(value.untyped_storage(), _RESULT)
    except (NotImplementedError, RuntimeError):  # it has no storage
        return False
