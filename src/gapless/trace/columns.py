"""Types of columns, and what the column `kind` of a span says."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class HostKind(IntEnum):
    """What a host span is."""

    OPERATOR = 0
    CALL = 1
    """A call of the runtime or the driver (``cudaLaunchKernel``, ``hipMemcpyWithStream``)."""
    FRAME = 2
    """A Python function."""
    ANNOTATION = 3
    OVERHEAD = 4
    """Time the profiler took for itself."""


class WorkKind(IntEnum):
    """What a device span is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
