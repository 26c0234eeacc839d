"""Copy batches to the device."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, TypeVar

import torch
from torch import Tensor

from gapless import trees

Batch = TypeVar("Batch")

_lock = threading.Lock()
_pending_copies: deque[tuple[Any, Tensor]] = deque()
"""Pinned host tensors whose copy may not be done, each with an event recorded after it, oldest first."""


def to_device(
    batch: Batch,
    device: torch.device | str | int,
    *,
    dtype: torch.dtype | None = None,
    stream: Any = None,
) -> Batch:
    """Return `batch` with every tensor in it on `device`, copied without waiting.

    Dicts, lists, tuples, named tuples and dataclasses are traversed; objects that are not tensors and have no
    ``to`` are kept. CPU tensors that are not pinned are pinned first (a copy on the host), and each source is
    kept alive until its copy is done. `dtype` is for floating point tensors, converted on the device. Tensors
    on `device` are not copied. To the CPU it is ``.to("cpu")``, which waits for a device tensor.

    With `stream`, a ``torch.cuda.Stream``, the copies run there, in parallel with work queued on the current
    stream, which then waits for them on the device; their memory stays valid for it.

    Replaces::

        images, labels = images.to("cuda"), labels.to("cuda")
        images, labels = ops.to_device((images, labels), "cuda")

    Refill a pinned buffer only when an event recorded after this call is complete. A DataLoader with
    ``pin_memory=True`` pins in a thread of its own, which is better than pinning here.
    """
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    _drop_finished_copies()
    if stream is None or device.type != "cuda":
        return _move_batch(batch, device, dtype)
    with torch.cuda.stream(stream):
        on_device = _move_batch(batch, device, dtype)
    current = torch.cuda.current_stream(stream.device)
    current.wait_stream(stream)
    for tensor in trees.tensors(on_device):
        if tensor.is_cuda:
            tensor.record_stream(current)
    return on_device


def _move_batch(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return `value` with its tensors, and objects with a ``to`` method, on `device`."""

    def send(tensor: Tensor) -> Tensor:
        return _copy_to_device(tensor, device, dtype if tensor.is_floating_point() else None)

    def move_by_method(leaf: Any) -> Any:
        moves = hasattr(leaf, "to") and not isinstance(leaf, (type, torch.nn.Module))
        return leaf.to(device, non_blocking=True) if moves else leaf

    return trees.map_tensors(value, send, move_by_method)


def _copy_to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """Copy one tensor to `device`, through pinned memory from the CPU."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device, dtype, non_blocking=device.type == "cuda")
    if tensor.layout == torch.strided and not tensor.is_pinned():
        # `pin_memory` is not differentiable, but a copy into pinned memory is.
        tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    copied = tensor.to(device, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(copied.device))
    with _lock:
        _pending_copies.append((event, tensor.detach()))
    return copied if dtype is None else copied.to(dtype)


def _drop_finished_copies() -> None:
    """Drop references to pinned tensors whose copies are done."""
    with _lock:
        while _pending_copies and _pending_copies[0][0].query():
            _pending_copies.popleft()
