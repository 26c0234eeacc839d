"""Tensors of any shapes and dtypes on one device as bytes of one buffer, which travel in one go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Form = tuple[torch.dtype, tuple[int, ...]]
DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
"""In the order of the codes that stand for them, which is the same in all processes of one torch."""
DIMS = 16
"""Most dimensions of a tensor whose form is written down as numbers."""
ALIGNED = 16
"""Bytes, of which whole buffers are multiples: so each of several that lie in a row begins where any may."""


def form_of(value: Tensor) -> Form:
    """What must be known of a tensor to find it in a buffer."""
    return value.dtype, tuple(value.shape)


def written(form: Form) -> list[int]:
    """A form as numbers, always as many."""
    dtype, shape = form
    return [DTYPES.index(dtype), len(shape), *shape, *(0,) * (DIMS - len(shape))]


def read(numbers: Sequence[int]) -> Form:
    """The form that was written so."""
    return DTYPES[numbers[0]], tuple(numbers[2 : 2 + numbers[1]])


def size_of(forms: Sequence[Form]) -> int:
    """Bytes of the buffer for tensors of these forms."""
    whole = sum(_bytes(form) for form in forms)
    return -(-whole // ALIGNED) * ALIGNED


def packed(values: Sequence[Tensor], size: int | None = None) -> Tensor:
    """The bytes of `values`, which are on one device, in one buffer (of `size`, which is at least theirs)."""
    order = _order([form_of(value) for value in values])
    parts = [values[i].detach().contiguous().reshape(-1).view(torch.uint8) for i in order]
    rest = (size or 0) - sum(part.numel() for part in parts)
    if rest > 0 or not parts:
        device = values[0].device if parts else None
        parts.append(torch.zeros(max(rest, 0), dtype=torch.uint8, device=device))
    return torch.cat(parts)


def unpacked(buffer: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """Tensors of these forms that lie in `buffer`."""
    found: dict[int, Tensor] = {}
    start = 0
    for i in _order(forms):
        end = start + _bytes(forms[i])
        found[i] = buffer[start:end].view(forms[i][0]).reshape(forms[i][1])
        start = end
    return [found[i] for i in range(len(forms))]


def _bytes(form: Form) -> int:
    return torch.Size(form[1]).numel() * form[0].itemsize


def _order(forms: Sequence[Form]) -> list[int]:
    """The widest elements first, so that all are aligned without padding."""
    return sorted(range(len(forms)), key=lambda i: -forms[i][0].itemsize)
