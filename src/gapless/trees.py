"""Values with tensors in them: dicts, lists, tuples, named tuples and dataclasses, nested in any way."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_LEAVES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""What is no container, told at once: operators are asked about each of their arguments."""


def parts(value: Any) -> Iterable[Any] | None:
    """What the container `value` holds, in order; None where it is none."""
    if isinstance(value, (list, tuple)):
        return value
    if type(value) in _LEAVES:
        return None
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, one.name) for one in dataclasses.fields(value) if hasattr(value, one.name)]
    return None


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in `value`, in order.

    >>> [tensor.item() for tensor in tensors({"loss": torch.ones(()), "others": [torch.zeros(()), 3]})]
    [1.0, 0.0]
    """
    if isinstance(value, Tensor):
        yield value
        return
    for part in parts(value) or ():
        if isinstance(part, Tensor):
            yield part
        elif type(part) not in _LEAVES:
            yield from tensors(part)


def mapped(value: Any, change: Callable[[Tensor], Any], other: Callable[[Any], Any] | None = None) -> Any:
    """A copy of `value` with `change` of each tensor in its place, and `other` of what else is no container.

    >>> mapped({"losses": [torch.ones(()), 3]}, Tensor.item)
    {'losses': [1.0, 3]}
    """
    if isinstance(value, Tensor):
        return change(value)
    held = parts(value)
    if held is None:
        return value if other is None else other(value)
    return rebuilt(value, [mapped(part, change, other) for part in held])


def rebuilt(value: Any, held: list[Any]) -> Any:
    """A container of the kind of `value` that holds this instead, in the order of :func:`parts`.

    Neither ``__init__`` nor ``__post_init__`` of a dataclass runs again.
    """
    if type(value) is list:
        return held
    if isinstance(value, (list, tuple)):
        return type(value)(*held) if hasattr(value, "_fields") else type(value)(held)
    if isinstance(value, Mapping):
        return _mapping(value, dict(zip(value, held, strict=True)))
    made = copy.copy(value)
    names = [one.name for one in dataclasses.fields(value) if hasattr(value, one.name)]
    for name, part in zip(names, held, strict=True):
        object.__setattr__(made, name, part)
    return made


def _mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    try:
        made: Any = copy.copy(value)
        for key, part in items.items():
            made[key] = part
    except TypeError:  # it cannot be written
        return items
    return made
