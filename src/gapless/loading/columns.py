"""Measure the tensors of a batch, and how few bytes would hold the same values."""

from __future__ import annotations

from typing import Any

import torch

from gapless.loading.padded import fields_of
from gapless.model.loading_feed import BatchTensor

_INTEGER_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
_MIN_BYTES = 4096
"""Smaller tensors are not checked."""
_CHANNEL_COUNTS = (1, 3, 4)
_BYTE_VALUES = 256
"""Distinct values of a channel that was scaled from bytes, at most."""
_MAX_VALUES_CHECKED = 1 << 20
"""Bounds the values of a tensor that are checked."""


def measure_columns(batch: Any) -> tuple[BatchTensor, ...]:
    """Return each tensor of `batch` with the smallest type that holds its values."""
    return tuple(_column(name, tensor) for name, tensor in fields_of(batch, deep=3))


def _column(name: str, tensor: torch.Tensor) -> BatchTensor:
    kind = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    unchanged = BatchTensor(name=name, kind=kind, bytes=size, least=size)
    if size < _MIN_BYTES or tensor.layout != torch.strided or tensor.is_nested:
        return unchanged
    to = _find_smaller_type(tensor.detach().cpu())
    if to is None:
        return unchanged
    least = tensor.numel() * to.itemsize
    return BatchTensor(name=name, kind=kind, bytes=size, least=least, to=str(to).removeprefix("torch."))


def _find_smaller_type(tensor: torch.Tensor) -> torch.dtype | None:
    """Return a type of fewer bytes for the values of `tensor`; None if none is certain to be as good."""
    if tensor.is_floating_point():
        if tensor.element_size() >= 4 and _is_scaled_from_bytes(tensor):
            return torch.uint8
        return torch.float32 if tensor.dtype == torch.float64 else None
    if tensor.dtype not in _INTEGER_TYPES or tensor.ndim < 2:  # losses require int64 labels, one per item
        return None
    low, high = (int(value) for value in tensor.aminmax())
    if (low, high) == (0, 1) and tensor.dtype != torch.int8:
        return torch.bool
    # A vocabulary is larger than a few batches show: nothing below 32 bits is advised.
    fits = torch.iinfo(torch.int32).min <= low and high <= torch.iinfo(torch.int32).max
    return torch.int32 if fits and tensor.dtype == torch.int64 else None


def _is_scaled_from_bytes(tensor: torch.Tensor) -> bool:
    """Whether the channels of images have at most 256 values at equal steps.

    If so they were scaled or normalized from bytes; resizing or rotating floats gives many more values.
    """
    if tensor.ndim < 4 or tensor.numel() < 64 * _BYTE_VALUES:
        return False
    if tensor.shape[1] in _CHANNEL_COUNTS:
        channels = tensor.movedim(1, 0)
    elif tensor.shape[-1] in _CHANNEL_COUNTS:
        channels = tensor.movedim(-1, 0)
    else:
        return False
    each = _MAX_VALUES_CHECKED // len(channels)
    return all(_has_byte_levels(channel.reshape(-1)[:each]) for channel in channels)


def _has_byte_levels(values: torch.Tensor) -> bool:
    levels = values.double().unique()
    if not 2 < len(levels) <= _BYTE_VALUES:
        return False
    steps = levels.diff()
    whole = (levels - levels[0]) / steps.min()
    close = (whole - whole.round()).abs().max() < 1e-2
    return bool(close) and whole[-1] < _BYTE_VALUES
