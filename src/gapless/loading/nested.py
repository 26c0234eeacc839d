"""Handle batches of any structure: find, pin, move and keep their tensors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gapless import trees

_MAX_DEPTH = 6
"""Nested objects searched for tensors, at most."""


class OpaqueObject(Exception):
    """An object with ``to`` whose tensors cannot be found."""


def move_to(value: Any, device: torch.device, opaque: bool = False) -> Any:
    """Return `value` with every tensor on `device`: pinned first if necessary, then copied without waiting.

    Raises:
        OpaqueObject: an object with ``to`` has no visible tensors, and `opaque` is not set.
    """
    if isinstance(value, Tensor):
        return _pin(value).to(device, non_blocking=True)
    if isinstance(value, PackedSequence):
        # The sizes stay on the host by definition, and PackedSequence.to() makes tensors on the way.
        order, back = (None if part is None else move_to(part, device) for part in value[2:])
        return type(value)(move_to(value.data, device), value.batch_sizes, order, back)
    by_itself = hasattr(value, "to") and not isinstance(value, (type, torch.nn.Module))
    if by_itself and not isinstance(value, (Mapping, list, tuple)):
        return _move_object(value, device, opaque)
    held = trees.children(value)
    return value if held is None else trees.rebuild(value, [move_to(part, device, opaque) for part in held])


def each_tensor(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in `value`, including attributes of dataclasses and of objects with ``to``."""
    return _tensors(value, 0, set())


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield every tensor in a batch once, in whatever object."""
    yielded: set[int] = set()
    for tensor in _tensors(batch, 1, set()):
        if id(tensor) not in yielded:
            yielded.add(id(tensor))
            yield tensor


def _tensors(value: Any, inside: int, visited: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        parts: Iterable[Any] = value if isinstance(value, (set, frozenset)) else trees.children(value) or ()
    elif inside < _MAX_DEPTH and (inside or dataclasses.is_dataclass(value) or hasattr(value, "to")):
        if id(value) in visited or isinstance(value, (type, torch.nn.Module)):
            return
        visited.add(id(value))
        parts, inside = _attributes(value), inside + 1
    else:
        return
    for part in parts:
        yield from _tensors(part, inside, visited)


def count_items(batch: Any) -> int:
    """Return how many items `batch` has, if its parts agree as only those of a batch do; otherwise 0.

    Either there is a number for each item (a label, a name) beside a part with more dimensions, or all parts
    are integer tables.
    """
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = list(batch)
    else:
        parts = [batch]
    shapes = [shape for shape in map(_shape, parts) if shape is not None]
    counts = {shape[0] for shape in shapes if shape}
    if len(counts) != 1 or not all(shapes) or len(shapes) < len(parts):
        return 0
    deep = {len(shape) for shape in shapes}
    whole = all(
        isinstance(part, Tensor) and not part.is_floating_point() and part.dtype != torch.uint8
        for part in parts
    )
    return counts.pop() if (1 in deep and max(deep) > 1) or (whole and deep == {2}) else 0


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, an array or a list with an entry per item; None for anything else."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return tuple(shape)
    return (len(value),) if isinstance(value, list) else None


def record_stream(value: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of `value` until `stream` has done what it has queued when the memory is freed."""
    for tensor in each_tensor(value):
        if tensor.is_cuda:
            tensor.record_stream(stream)


def _pin(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
        return tensor
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def _move_object(value: Any, device: torch.device, opaque: bool) -> Any:
    """Move an object with its own ``to``."""
    if not opaque and not any(True for _ in each_tensor(value)):
        raise OpaqueObject(type(value).__name__)
    if _accepts(getattr(value, "pin_memory", None)):
        value = value.pin_memory()
    if _accepts(value.to, "non_blocking"):
        return value.to(device, non_blocking=True)
    return value.to(device)


def _accepts(function: Callable[..., Any] | None, name: str = "") -> bool:
    """Whether `function` can be called with argument `name` (or without arguments)."""
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if not name:
        open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return all(p.default is not p.empty or p.kind in open_ended for p in parameters)
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _attributes(value: Any) -> Iterator[Any]:
    if type(value).__module__ in ("builtins", "numpy"):
        return
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield getattr(value, name)
