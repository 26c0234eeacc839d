"""The bytes of a host storage."""

from __future__ import annotations

from ctypes import c_uint8
from typing import Any

import numpy as np

from gapless.emulation.races.ranges import ByteRange

_SAMPLES = 4096
"""Bytes hashed for a digest: enough to notice a refilled buffer, and cheap for large ones."""


def bytes_at(storage: Any, where: ByteRange) -> np.ndarray:
    """Return a writable array over bytes `where` of a host storage."""
    buffer: Any = (c_uint8 * (where.end - where.begin)).from_address(storage.data_ptr() + where.begin)
    return np.frombuffer(buffer, dtype=np.uint8)


def digest(storage: Any, where: ByteRange) -> int:
    """Return a hash of samples of bytes `where` of a host storage."""
    raw = bytes_at(storage, where)
    return hash(raw[:: max(len(raw) // _SAMPLES, 1)].tobytes())
