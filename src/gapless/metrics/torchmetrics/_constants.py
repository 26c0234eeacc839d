"""Create constants on the device without a copy from pageable memory, for which the host would wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fill(value: bool | int | float | complex, device: Any, dtype: torch.dtype | None = None) -> Tensor:
    """Return a 0-dim tensor of `value` on `device`, filled by a kernel without a copy; dtype as in
    `torch.tensor`.
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
    """Like `torch.tensor`, but numbers are filled in on the device and lists go through pinned memory."""
    if isinstance(data, Tensor) or not _on_device(device) or requires_grad:
        return torch.tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory
        )
    return _to_device(data, device, dtype)


def as_tensor_without_waiting(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """Like `torch.as_tensor`, with numbers and lists copied as in `tensor_without_waiting`."""
    if isinstance(data, Tensor) or not _on_device(device):
        return torch.as_tensor(data, dtype=dtype, device=device)
    return _to_device(data, device, dtype)


def _to_device(data: Any, device: Any, dtype: torch.dtype | None) -> Tensor:
    """Return `data`, a number or a list, as a tensor on `device`, without waiting."""
    if type(data) in (bool, int, float, complex):
        return fill(data, device, dtype)
    host = torch.as_tensor(data, dtype=dtype)
    if host.dim() == 0:
        return fill(host.item(), device, host.dtype)
    if torch.device(device).type != "cuda" or host.numel() == 0:
        return host.to(device)
    # cloned, because the caller's memory may change before the device has read it
    return host.clone().pin_memory().to(device, non_blocking=True)
