"""Constants that reach the device without a copy from pageable memory, which the host would wait for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fill(value: bool | int | float | complex, device: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A 0-dim tensor of `value` on `device`: a kernel with an argument, no copy. dtype as `torch.tensor` has
    it.
    """
    return torch.full((), value, dtype=dtype, device=device)


def _on_device(device: Any) -> bool:
    return device is not None and torch.device(device).type not in ("cpu", "meta")


def tensor_without_waiting(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """`torch.tensor`, but a number is filled in on the device and a list goes there through pinned memory."""
    if isinstance(data, Tensor) or not _on_device(device) or requires_grad:
        return torch.tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory
        )
    return _placed(data, device, dtype)


def as_tensor_without_waiting(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """`torch.as_tensor`, but numbers and lists reach the device as in `tensor_without_waiting`."""
    if isinstance(data, Tensor) or not _on_device(device):
        return torch.as_tensor(data, dtype=dtype, device=device)
    return _placed(data, device, dtype)


def _placed(data: Any, device: Any, dtype: torch.dtype | None) -> Tensor:
    if type(data) in (bool, int, float, complex):
        return fill(data, device, dtype)
    host = torch.as_tensor(data, dtype=dtype)
    if host.dim() == 0:
        return fill(host.item(), device, host.dtype)
    if torch.device(device).type != "cuda" or host.numel() == 0:
        return host.to(device)
    # a copy of its own: the caller's memory may change before the device has read it
    return host.clone().pin_memory().to(device, non_blocking=True)
