"""Batches of any shape: each tensor in them, pinned, moved, and kept for a stream."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gapless import trees

_DEEP = 6
"""How far tensors are looked for inside of objects."""


class Opaque(Exception):
    """An object has a ``to``, and its tensors cannot be seen from outside."""


def moved(value: Any, device: torch.device, opaque: bool = False) -> Any:
    """`value` with every tensor in it on `device`: pinned first where it is not, then copied without waiting.

    Raises:
        Opaque: what is inside of an object with a ``to`` cannot be told, and `opaque` is not set.
    """
    if isinstance(value, Tensor):
        return _pinned(value).to(device, non_blocking=True)
    if isinstance(value, PackedSequence):
        # The sizes stay on the host by definition, and PackedSequence.to() makes tensors on the way.
        order, back = (None if part is None else moved(part, device) for part in value[2:])
        return type(value)(moved(value.data, device), value.batch_sizes, order, back)
    by_itself = hasattr(value, "to") and not isinstance(value, (type, torch.nn.Module))
    if by_itself and not isinstance(value, (Mapping, list, tuple)):
        return _by_itself(value, device, opaque)
    held = trees.parts(value)
    return value if held is None else trees.rebuilt(value, [moved(part, device, opaque) for part in held])


def each_tensor(value: Any) -> Iterator[Tensor]:
    """Every tensor in `value`, with the attributes of dataclasses and of objects with a ``to``."""
    return _tensors(value, 0, set())


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Every tensor in a batch, whatever object holds it, and each only once."""
    seen: set[int] = set()
    for tensor in _tensors(batch, 1, set()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def _tensors(value: Any, inside: int, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        parts: Iterable[Any] = value if isinstance(value, (set, frozenset)) else trees.parts(value) or ()
    elif inside < _DEEP and (inside or dataclasses.is_dataclass(value) or hasattr(value, "to")):
        if id(value) in seen or isinstance(value, (type, torch.nn.Module)):
            return
        seen.add(id(value))
        parts, inside = _attributes(value), inside + 1
    else:
        return
    for part in parts:
        yield from _tensors(part, inside, seen)


def batched_as(batch: Any) -> int:
    """How many items `batch` has, where its parts have that in common as only a batch's do; otherwise 0.

    There is a number for each item (a label, a name), and besides something of more dimensions; or all are
    tables of whole numbers.
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
    """The shape of a tensor, an array or a list with one entry for each item; None of anything else."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return tuple(shape)
    return (len(value),) if isinstance(value, list) else None


def keep_for(value: Any, stream: torch.cuda.Stream) -> None:
    """Memory of `value` is not used again before what `stream` has queued by the time it is freed is done."""
    for tensor in each_tensor(value):
        if tensor.is_cuda:
            tensor.record_stream(stream)


def _pinned(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.numel():
        return tensor
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def _by_itself(value: Any, device: torch.device, opaque: bool) -> Any:
    """An object that knows how to move."""
    if not opaque and not any(True for _ in each_tensor(value)):
        raise Opaque(type(value).__name__)
    if _takes(getattr(value, "pin_memory", None)):
        value = value.pin_memory()
    if _takes(value.to, "non_blocking"):
        return value.to(device, non_blocking=True)
    return value.to(device)


def _takes(function: Callable[..., Any] | None, name: str = "") -> bool:
    """Whether `function` can be called with the argument `name` (or with none)."""
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
