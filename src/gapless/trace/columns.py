"""Types of columns, and the kinds of host and device spans."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class HostKind(IntEnum):
    """Kind of a host span."""

    OPERATOR = 0
    CALL = 1
    """A call of the runtime or the driver (``cudaLaunchKernel``, ``hipMemcpyWithStream``)."""
    FRAME = 2
    """A Python function."""
    ANNOTATION = 3
    OVERHEAD = 4
    """Time the profiler took for itself."""


class WorkKind(IntEnum):
    """Kind of a device span."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
