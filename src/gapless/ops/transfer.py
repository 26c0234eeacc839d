"""Batches on their way to the device."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")

_lock = threading.Lock()
_under_way: deque[tuple[Any, Tensor]] = deque()
"""Pinned host tensors whose copy may not be done, each with the event behind it, oldest first."""


def to_device(
    batch: Batch,
    device: torch.device | str | int,
    *,
    dtype: torch.dtype | None = None,
    stream: Any = None,
) -> Batch:
    """`batch` with every tensor in it on `device`, copied without waiting.

    Dicts, lists, tuples, named tuples and dataclasses are gone through; what is no tensor and has no ``to``
    stays as it is. Host tensors that are not pinned are pinned first (a copy on the host), and each source
    is kept alive until its copy is done. `dtype` is for floating point tensors, converted on the device.
    Already there: nothing is copied. To the CPU it is ``.to("cpu")``, which waits for a device tensor.

    With `stream`, a ``torch.cuda.Stream``, the copies run there, beside what the current stream has queued;
    the current stream goes on behind them, and the memory is kept for it.

    Replaces::

        images, labels = images.to("cuda"), labels.to("cuda")
        images, labels = ops.to_device((images, labels), "cuda")

    Fill a pinned buffer again only when an event recorded behind this call is complete. A DataLoader with
    ``pin_memory=True`` pins in a thread of its own, which is better than pinning here.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    _forget_arrived()
    if stream is None or device.type != "cuda":
        return _moved(batch, device, dtype)
    with torch.cuda.stream(stream):
        moved = _moved(batch, device, dtype)
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)
    _each_tensor(moved, lambda tensor: tensor.record_stream(current) if tensor.is_cuda else None)
    return moved


def _moved(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return _sent(value, device, dtype if value.is_floating_point() else None)
    if isinstance(value, Mapping):
        parts = {key: _moved(part, device, dtype) for key, part in value.items()}
        return _like(value, parts)
    if isinstance(value, (list, tuple)):
        items = [_moved(part, device, dtype) for part in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(
            value, **{name: _moved(getattr(value, name), device, dtype) for name in fields}
        )
    if hasattr(value, "to") and not isinstance(value, (type, torch.nn.Module)):
        return value.to(device, non_blocking=True)
    return value


def _like(value: Any, parts: dict[Any, Any]) -> Any:
    """`parts` as a mapping of the kind of `value`."""
    if type(value) is dict:
        return parts
    try:
        made = value.copy()
        made.update(parts)
    except (AttributeError, TypeError):
        return parts
    return made


def _sent(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device, dtype, non_blocking=device.type == "cuda")
    if tensor.layout == torch.strided and not tensor.is_pinned():
        # `pin_memory` lets no gradient through, and a copy into pinned memory does.
        tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    moved = tensor.to(device, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(moved.device))
    with _lock:
        _under_way.append((event, tensor.detach()))
    return moved if dtype is None else moved.to(dtype)


def _forget_arrived() -> None:
    with _lock:
        while _under_way and _under_way[0][0].query():
            _under_way.popleft()


def _each_tensor(value: Any, do: Any) -> None:
    if isinstance(value, Tensor):
        do(value)
    elif isinstance(value, Mapping):
        for part in value.values():
            _each_tensor(part, do)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _each_tensor(part, do)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _each_tensor(getattr(value, field.name), do)
