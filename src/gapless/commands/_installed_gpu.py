"""The GPU of this machine, as its driver names it: asked without CUDA, which would then be in use."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.errors import UsageError
from gapless.model.gpus import find, nearest

_LIBRARY = "libnvidia-ml.so.1"
_MAX_NAME_BYTES = 96
"""Bytes of a name that the driver writes at most."""


class InstalledGpu(NamedTuple):
    """The name of a GPU, its compute capability and its memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int


def installed_gpu() -> InstalledGpu | None:
    """Return the first GPU that a CUDA program would see on this machine; None if there is none.

    Numbers are the driver's. CUDA numbers GPUs that differ by speed unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``:
    of those it may use another.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2():
            return None
        try:
            return _ask(library, visible)
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError, ctypes.ArgumentError):  # no driver, no such function or such number
        return None


def _ask(library: Any, visible: str) -> InstalledGpu | None:
    """Return the GPU with that number or UUID; None if the driver does not know it."""
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_MAX_NAME_BYTES)
    if visible.isascii() and visible.isdigit():
        failed = library.nvmlDeviceGetHandleByIndex_v2(int(visible), ctypes.byref(handle))
    else:
        failed = library.nvmlDeviceGetHandleByUUID(os.fsencode(visible), ctypes.byref(handle))
    failed = (
        failed
        or library.nvmlDeviceGetName(handle, name, _MAX_NAME_BYTES)
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
        or library.nvmlDeviceGetMemoryInfo(handle, memory)
    )
    if failed:
        return None
    return InstalledGpu(name.value.decode(errors="replace"), (major.value, minor.value), int(memory[0]))


def gpu_of_this_machine(
    ask: Callable[[], InstalledGpu | None] = installed_gpu,
) -> tuple[str | None, str]:
    """Return the GPU to emulate as it is in this machine (None: there is none), and what to say of it."""
    installed = ask()
    if installed is None:
        return None, ""
    try:
        return find(installed.name).name, ""
    except UsageError:
        gpu = nearest(installed.capability, installed.memory)
        return gpu.name, (
            f"this machine's {installed.name} is in no table of GPUs: estimated for the nearest, {gpu.name} "
            "(--gpu names another)"
        )
