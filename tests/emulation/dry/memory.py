"""Tensors without values, and the memory that they do not take."""

from __future__ import annotations

import os

import torch

from gapless.emulation.dry import filling
from gapless.emulation.emulator import current

CUDA = "cuda"


def unknown(*size, dtype=torch.float32):
    """A tensor on the device that has no values, whatever its size."""
    tensor = torch.empty(*size, dtype=dtype, device=CUDA)
    current().core.values.mark(tensor, filling.anything("draw", dtype))
    return tensor


def resident():
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
