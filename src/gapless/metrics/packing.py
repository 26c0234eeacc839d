"""Pack tensors of any shapes and dtypes on one device into the bytes of one buffer, and unpack them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TensorForm = tuple[torch.dtype, tuple[int, ...]]
"""Dtype and shape of a tensor."""
DTYPES = sorted({dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}, key=str)
"""All dtypes, in the order of their codes: the same in all processes with the same torch."""
MAX_DIMS = 16
"""Dimensions that an encoded form has room for."""
ALIGNMENT = 16
"""Bytes to which buffers are padded, so that buffers in a row are aligned for any dtype."""


def form_of(value: Tensor) -> TensorForm:
    """Return the dtype and shape of a tensor."""
    return value.dtype, tuple(value.shape)


def encode_form(form: TensorForm) -> list[int]:
    """Return a form as a list of integers of fixed length."""
    dtype, shape = form
    return [DTYPES.index(dtype), len(shape), *shape, *(0,) * (MAX_DIMS - len(shape))]


def decode_form(numbers: Sequence[int]) -> TensorForm:
    """Return the form that :func:`encode_form` encoded."""
    return DTYPES[numbers[0]], tuple(numbers[2 : 2 + numbers[1]])


def size_of(forms: Sequence[TensorForm]) -> int:
    """Return the bytes of the buffer for tensors of these forms."""
    total = sum(_bytes(form) for form in forms)
    return -(-total // ALIGNMENT) * ALIGNMENT


def pack(values: Sequence[Tensor], size: int | None = None) -> Tensor:
    """Copy the bytes of `values`, all on one device, into one buffer, padded to `size` if given."""
    order = _order([form_of(value) for value in values])
    parts = [values[i].detach().contiguous().reshape(-1).view(torch.uint8) for i in order]
    rest = (size or 0) - sum(part.numel() for part in parts)
    if rest > 0 or not parts:
        device = values[0].device if parts else None
        parts.append(torch.zeros(max(rest, 0), dtype=torch.uint8, device=device))
    return torch.cat(parts)


def unpack(buffer: Tensor, forms: Sequence[TensorForm]) -> list[Tensor]:
    """Return the tensors of these forms in `buffer`, as views."""
    tensors: dict[int, Tensor] = {}
    start = 0
    for i in _order(forms):
        end = start + _bytes(forms[i])
        tensors[i] = buffer[start:end].view(forms[i][0]).reshape(forms[i][1])
        start = end
    return [tensors[i] for i in range(len(forms))]


def _bytes(form: TensorForm) -> int:
    return torch.Size(form[1]).numel() * form[0].itemsize


def _order(forms: Sequence[TensorForm]) -> list[int]:
    """Return the order of the tensors in a buffer: widest elements first, so that all are aligned."""
    return sorted(range(len(forms)), key=lambda i: -forms[i][0].itemsize)
