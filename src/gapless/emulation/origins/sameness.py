"""Whether what is copied to the device is what was copied from the same memory in the step before."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import torch

from gapless.emulation.origins.tags import SENT, SHARED

_WHOLE = 1 << 16
"""Bytes up to which all are compared: 20 µs."""
_WHOLE_SHARED = 1 << 24
"""The same for memory that NumPy may write to without a trace: 5 ms."""
_SAMPLES, _SAMPLE = 16, 4096
"""Number and bytes of the samples that stand for larger memory."""
_MAX_PARTS = 64
"""Parts of one storage that are remembered: views of a buffer, copied one by one."""

UNCHANGED, REFILLED, ASSUMED = "unchanged", "refilled", "assumed"
"""``assumed``: torch wrote nothing to it, and there are no bytes to compare."""


class _Sent:
    """What was copied: its version, its bytes, when it was first copied, and the last answer."""

    __slots__ = ("answer", "checksum", "tick", "version")

    def __init__(self, version: int, tick: int) -> None:
        self.version, self.tick = version, tick
        self.checksum: int | None = None
        self.answer: str | None = ""


def compare_with_last(
    tensor: torch.Tensor, attributes: dict[str, Any], tick: int, has_values: bool
) -> tuple[str | None, int]:
    """Return `UNCHANGED`, `REFILLED` or `ASSUMED`, or "" if this memory was not copied before; None if it was
    copied in one earlier step only, so that its bytes are not known. Also return the tick of that step, if it
    is the only one, else -1.

    Bytes are compared from the second step on: most memory is copied in one step and never again.
    """
    parts: dict[Any, _Sent] = attributes.setdefault(SENT, {})
    key = tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
    version = 0 if tensor.is_inference() else tensor._version
    sent = parts.get(key)
    if sent is None:
        if len(parts) < _MAX_PARTS:
            parts[key] = _Sent(version, tick)
        return "", -1
    if sent.tick == tick and sent.version == version:
        return sent.answer, -1  # the same copy again within the step
    earlier = sent.tick if sent.answer == "" else -1
    checksum = _checksum(tensor, attributes) if has_values else None
    if sent.version != version or (None not in (sent.checksum, checksum) and sent.checksum != checksum):
        answer: str | None = REFILLED
    elif not has_values:
        answer = ASSUMED
    else:
        answer = None if sent.checksum is None else UNCHANGED
    sent.version, sent.tick, sent.checksum, sent.answer = version, tick, checksum, answer
    return answer, earlier


def _checksum(tensor: torch.Tensor, attributes: dict[str, Any]) -> int | None:
    """Return a checksum of a tensor's memory, or of samples of it; None if it has too much or none."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    size, begin = (last + 1) * tensor.element_size(), tensor.data_ptr()
    if not begin:
        return None
    shared = SHARED in attributes
    if size <= (_WHOLE_SHARED if shared else _WHOLE):
        return zlib.crc32((ctypes.c_char * size).from_address(begin))
    if shared:
        return None
    checksum, step = 0, (size - _SAMPLE) // (_SAMPLES - 1)
    for number in range(_SAMPLES):
        sample = (ctypes.c_char * _SAMPLE).from_address(begin + number * step)
        checksum = zlib.crc32(sample, checksum)
    return checksum
