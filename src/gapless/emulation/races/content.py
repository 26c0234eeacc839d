"""The bytes of a host storage."""

from __future__ import annotations

from ctypes import c_uint8
from typing import Any

import numpy as np

from gapless.emulation.races.ranges import Range

_SAMPLES = 4096
"""Bytes that a digest is made of."""


def content(storage: Any, where: Range) -> np.ndarray:
    """Those bytes as they are: what is written to the array is written there."""
    buffer: Any = (c_uint8 * (where.end - where.begin)).from_address(storage.data_ptr() + where.begin)
    return np.frombuffer(buffer, dtype=np.uint8)


def digest(storage: Any, where: Range) -> int:
    """A number that another content most likely does not have."""
    raw = content(storage, where)
    return hash(raw[:: max(len(raw) // _SAMPLES, 1)].tobytes())
