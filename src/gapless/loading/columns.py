"""What the tensors of a batch take, and how few bytes would hold the same values."""

from __future__ import annotations

from typing import Any

import torch

from gapless.loading.padded import fields_of
from gapless.model.loading_feed import Column

_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)
_SMALL = 4096
"""Bytes below which a tensor is not worth a look."""
_CHANNELS = (1, 3, 4)
_LEVELS = 256
"""Values of an image's channel that was one of bytes before it was scaled."""
_LOOKED = 1 << 20
"""Values of a tensor that are looked at, at most."""


def columns(batch: Any) -> tuple[Column, ...]:
    """Each tensor of `batch`, with the smallest type that holds its values as well."""
    return tuple(_column(name, tensor) for name, tensor in fields_of(batch, deep=3))


def _column(name: str, tensor: torch.Tensor) -> Column:
    kind = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    made = Column(name=name, kind=kind, bytes=size, least=size)
    if size < _SMALL or tensor.layout != torch.strided or tensor.is_nested:
        return made
    to = _smaller(tensor.detach().cpu())
    if to is None:
        return made
    least = tensor.numel() * to.itemsize
    return Column(name=name, kind=kind, bytes=size, least=least, to=str(to).removeprefix("torch."))


def _smaller(tensor: torch.Tensor) -> torch.dtype | None:
    """A type of fewer bytes for the values of `tensor`; None where there is none that is surely as good."""
    if tensor.is_floating_point():
        if tensor.element_size() >= 4 and _of_bytes(tensor):
            return torch.uint8
        return torch.float32 if tensor.dtype == torch.float64 else None
    if tensor.dtype not in _WHOLE or tensor.ndim < 2:  # a label for each item is what losses ask for
        return None
    low, high = (int(value) for value in tensor.aminmax())
    if (low, high) == (0, 1) and tensor.dtype != torch.int8:
        return torch.bool
    # A vocabulary is larger than what a few batches show: nothing below 32 bits is advised.
    fits = torch.iinfo(torch.int32).min <= low and high <= torch.iinfo(torch.int32).max
    return torch.int32 if fits and tensor.dtype == torch.int64 else None


def _of_bytes(tensor: torch.Tensor) -> bool:
    """Whether images have no more values in a channel than a byte has, at steps of one size.

    So they were scaled, or normalized, from bytes; resizing or turning them as floats gives many more.
    """
    if tensor.ndim < 4 or tensor.numel() < 64 * _LEVELS:
        return False
    if tensor.shape[1] in _CHANNELS:
        channels = tensor.movedim(1, 0)
    elif tensor.shape[-1] in _CHANNELS:
        channels = tensor.movedim(-1, 0)
    else:
        return False
    each = _LOOKED // len(channels)
    return all(_levels(channel.reshape(-1)[:each]) for channel in channels)


def _levels(values: torch.Tensor) -> bool:
    found = values.double().unique()
    if not 2 < len(found) <= _LEVELS:
        return False
    steps = found.diff()
    whole = (found - found[0]) / steps.min()
    close = (whole - whole.round()).abs().max() < 1e-2
    return bool(close) and whole[-1] < _LEVELS
