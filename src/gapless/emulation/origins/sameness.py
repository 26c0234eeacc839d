"""Whether what is copied to the device is what was copied from the same memory in the step before."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import torch

from gapless.emulation.origins.tags import SENT, SHARED, WRITES

_WHOLE = 1 << 16
"""Bytes up to which all are compared: 20 µs."""
_WHOLE_SHARED = 1 << 24
"""The same for memory that NumPy or another process may write to without a trace: 5 ms."""
_SAMPLES, _SAMPLE = 16, 4096
"""Number and bytes of the samples that stand for larger memory."""
_MAX_PARTS = 64
"""Parts of one storage that are remembered: views of a buffer, copied one by one."""

UNCHANGED, REFILLED, ASSUMED = "unchanged", "refilled", "assumed"
"""``assumed``: torch wrote nothing to it, and there are no bytes to compare."""


class Sent:
    """What was copied: its version and bytes, the steps in which it was copied, and the last answer.

    `first` is the first such step, `tick` the last, `previous` the one before.
    """

    __slots__ = ("answer", "checksum", "first", "previous", "tick", "version")

    def __init__(self, version: tuple[int, int], tick: int) -> None:
        self.version, self.first, self.previous, self.tick = version, tick, -1, tick
        self.checksum: int | None = None
        self.answer: str | None = ""


def compare_with_last(
    tensor: torch.Tensor, attributes: dict[str, Any], tick: int, has_values: bool
) -> Sent | None:
    """Return what is known of the memory that is copied; None if it has too many parts.

    Its answer is `UNCHANGED`, `REFILLED` or `ASSUMED`, or "" if the memory was not copied before; None if its
    bytes are not known from an earlier step. They are compared from the second step on: most memory is copied
    in one step and never again.
    """
    parts: dict[Any, Sent] = attributes.setdefault(SENT, {})
    key = tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
    version = 0 if tensor.is_inference() else tensor._version, attributes.get(WRITES, 0)
    sent = parts.get(key)
    if sent is None:
        if len(parts) >= _MAX_PARTS:
            return None
        sent = parts[key] = Sent(version, tick)
        return sent
    if sent.tick == tick and sent.version == version:
        return sent  # the same copy again within the step
    checksum = _checksum(tensor, attributes) if has_values else None
    if sent.version != version or (None not in (sent.checksum, checksum) and sent.checksum != checksum):
        sent.answer = REFILLED
    elif not has_values:
        sent.answer = None if _has_unseen_writers(tensor, attributes) else ASSUMED
    else:
        sent.answer = None if None in (sent.checksum, checksum) else UNCHANGED
    if sent.tick != tick:
        sent.previous = sent.tick
    sent.version, sent.tick, sent.checksum = version, tick, checksum
    return sent


def _has_unseen_writers(tensor: torch.Tensor, attributes: dict[str, Any]) -> bool:
    """Whether NumPy or another process may write to a tensor's memory."""
    return SHARED in attributes or tensor.untyped_storage().is_shared()


def _checksum(tensor: torch.Tensor, attributes: dict[str, Any]) -> int | None:
    """Return a checksum of a tensor's memory, or of samples of it; None if it has too much or none."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    size, begin = (last + 1) * tensor.element_size(), tensor.data_ptr()
    if not begin:
        return None
    shared = _has_unseen_writers(tensor, attributes)
    if size <= (_WHOLE_SHARED if shared else _WHOLE):
        return zlib.crc32((ctypes.c_char * size).from_address(begin))
    if shared:
        return None
    checksum, step = 0, (size - _SAMPLE) // (_SAMPLES - 1)
    for number in range(_SAMPLES):
        sample = (ctypes.c_char * _SAMPLE).from_address(begin + number * step)
        checksum = zlib.crc32(sample, checksum)
    return checksum
