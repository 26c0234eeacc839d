"""Batches on their way to the device."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, TypeVar

import torch
from torch import Tensor

from gapless import trees

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
    for tensor in trees.tensors(moved):
        if tensor.is_cuda:
            tensor.record_stream(current)
    return moved


def _moved(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    def sent(tensor: Tensor) -> Tensor:
        return _sent(tensor, device, dtype if tensor.is_floating_point() else None)

    def by_itself(leaf: Any) -> Any:
        moves = hasattr(leaf, "to") and not isinstance(leaf, (type, torch.nn.Module))
        return leaf.to(device, non_blocking=True) if moves else leaf

    return trees.mapped(value, sent, by_itself)


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
