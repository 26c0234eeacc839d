"""The CUDA runtime as torch's Python code sees it: initialization, ordinals, forks, and small switches."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from gapless import torch_internals
from gapless.emulation.support.cuda_errors import accelerator_error
from gapless.emulation.support.device import Device
from gapless.errors import NotEmulated

Functions = dict[str, Callable[..., Any]]
"""Replacements of functions of ``torch._C``, by name."""

CUDA_DEVICE_TYPE = 1
"""The value of `c10::DeviceType::CUDA` in stream ids."""

CONTEXT_BYTES = 512 * 1024 * 1024
"""Approximate memory of a CUDA context with torch's kernels; affects only free memory."""

# c10/cuda/CUDAException.cpp and CUDAMiscFunctions.cpp of torch 2.13; older versions end in other advice.
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_INVALID_ORDINAL = (
    "CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?\n"
    "For more detailed error information, run with CUDA_LOG_FILE=stderr\n"
)


class Runtime:
    """State of the emulated CUDA runtime of one process."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.sync_debug_mode = 0
        self.memory_fraction: dict[int, float] = {}
        self._count: int | None = None
        outside = os.environ.get(_VISIBLE)
        self._hidden_outside = outside if outside in ("", "-1") else None
        self._initialized_by: int | None = None
        self._local = threading.local()

    # -- devices -------------------------------------------------------------------------------------------

    def device_count(self) -> int:
        """Number of visible devices; fixed at the first call, as by the driver."""
        if self._count is None:
            variable = os.environ.get(_VISIBLE)
            if variable is not None and variable == self._hidden_outside:
                # Set where Gapless was started, to hide a real GPU; a script that sets it itself means it.
                variable = None
                self.device.note(f"{_VISIBLE} hides every GPU here; the script still sees the emulated ones")
            self._count = visible_devices(self.device.device_count, variable)
        return self._count

    def check(self, index: int) -> int:
        """Return `index` if there is such a device.

        Raises:
            torch.AcceleratorError: there is none (CUDA's own text).
        """
        if not 0 <= index < self.device_count():
            raise accelerator_error(_INVALID_ORDINAL, 101)
        return index

    def current(self) -> int:
        """This thread's current device."""
        return self.device.current_device()

    def select(self, index: int) -> None:
        """Make `index` this thread's current device."""
        if index < 0:
            raise RuntimeError("device id must be non-negative!")
        self.device.set_current_device(self.check(index))

    def exchange(self, index: int) -> int:
        """Select `index` (negative: leave it) and return what was selected before, or -1."""
        if index < 0:
            return -1
        before = self.current()
        if index != before:
            self.select(index)
        return before

    # -- initialization and forks --------------------------------------------------------------------------

    def initialize(self) -> None:
        """Stand in for ``torch._C._cuda_init``; raises if no device is visible."""
        if self.device_count() == 0:
            raise RuntimeError("No CUDA GPUs are available")
        self._initialized_by = os.getpid()

    def in_bad_fork(self) -> bool:
        """Whether this process was forked after CUDA was initialized, so that CUDA cannot be used."""
        return self._initialized_by is not None and self._initialized_by != os.getpid()

    def is_initialized(self) -> bool:
        """Whether CUDA is initialized; any tensor on the device means that it is."""
        if self.in_bad_fork():
            return False
        if torch_internals.cuda_initialized:
            return True
        if self._count == 0 or not any(map(self.device.allocated, range(self.device.device_count))):
            return False
        self.initialize()
        setattr(*torch_internals.place("cuda_initialized"), True)
        return True

    def call_now(self, function: Callable[[], None], **_: Any) -> None:
        """Stand in for ``torch.cuda._lazy_call``: call at once, without initializing CUDA.

        torch queues such calls (seeds, RNG states) until CUDA is first used. The emulated device shares the
        CPU's generator, so a late seed would also reset the CPU's draws.
        """
        if self.in_bad_fork():
            return
        local = torch_internals.cuda_thread_state
        if self.is_initialized() or hasattr(local, "is_initializing"):
            function()
            return
        local.is_initializing = True  # torch.cuda._lazy_init returns at once while this is set
        try:
            function()
        finally:
            del local.is_initializing

    def set_sync_debug_mode(self, mode: int) -> None:
        """Store the mode; the recorder of waits applies it."""
        self.sync_debug_mode = int(mode)

    # -- per-thread state ----------------------------------------------------------------------------------

    def current_stream_id(self, index: int) -> int:
        """Id of this thread's current stream on device `index`; 0 is the default stream."""
        return self._streams().get(index, 0)

    def set_current_stream(self, stream_id: int, index: int) -> None:
        """Make the stream current on its device for this thread, and that device the current one."""
        self.device.graphs.set_stream(self.check(index), stream_id)
        self._streams()[index] = stream_id
        self.device.record_stream_call("stream", stream_id, index=index)
        if index != self.current():
            self.select(index)

    def _streams(self) -> dict[int, int]:
        streams: dict[int, int] | None = getattr(self._local, "streams", None)
        if streams is None:
            streams = self._local.streams = {}
        return streams


def visible_devices(count: int, variable: str | None) -> int:
    """Number of the `count` devices that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    Only the length of its list counts, so that a script written for the third GPU of a server runs, too. Like
    the driver, reading stops at the first entry that names no device.
    """
    if variable is None:
        return count
    named: list[str] = []
    for word in variable.split(","):
        entry = word.strip()
        if not re.match(r"\+?\d|GPU-|MIG-", entry):
            break
        if entry in named:  # the driver shows no device if one is named twice
            return 0
        named.append(entry)
    return min(count, len(named))


def refusal(name: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that raises `NotEmulated` with `name` and the advice `instead`."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotEmulated(f"{name} needs a CUDA device. {instead}")

    return refuse
