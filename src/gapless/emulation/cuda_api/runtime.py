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
"""`c10::DeviceType::CUDA`, as streams carry it."""

CONTEXT_BYTES = 512 * 1024 * 1024
"""What a CUDA context with torch's kernels takes of a device, roughly; seen only in free memory."""

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
        """Devices the process may use; fixed when first asked, as the driver fixes it."""
        if self._count is None:
            variable = os.environ.get(_VISIBLE)
            if variable is not None and variable == self._hidden_outside:
                # Set where Gapless was started, to hide a real GPU; a script that sets it itself means it.
                variable = None
                self.device.note(f"{_VISIBLE} hides every GPU here; the script still sees the emulated ones")
            self._count = visible_devices(self.device.device_count, variable)
        return self._count

    def check(self, index: int) -> int:
        """`index`, if there is such a device.

        Raises:
            torch.AcceleratorError: there is none, in CUDA's words.
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
        """What ``torch._C._cuda_init`` does: fails where there is no device."""
        if self.device_count() == 0:
            raise RuntimeError("No CUDA GPUs are available")
        self._initialized_by = os.getpid()

    def in_bad_fork(self) -> bool:
        """Whether this process was forked from one that had used CUDA: there CUDA cannot be used again."""
        return self._initialized_by is not None and self._initialized_by != os.getpid()

    def is_initialized(self) -> bool:
        """Whether CUDA is in use; tensors on the device mean that it is, however they came there."""
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
        """Stand in for ``torch.cuda._lazy_call``: run at once, without making CUDA count as initialized.

        torch queues such calls (seeds, RNG states) until CUDA is first used. The emulated device draws from
        the CPU's generator, so a seed that came late would set the CPU's draws back, too.
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
        """Keep the mode; heeding it is the business of whoever records waits."""
        self.sync_debug_mode = int(mode)

    # -- per-thread state ----------------------------------------------------------------------------------

    def current_stream_id(self, index: int) -> int:
        """Id of this thread's current stream on device `index`; 0 is the default stream."""
        return self._streams().get(index, 0)

    def set_current_stream(self, stream_id: int, index: int) -> None:
        """Make it this thread's current stream on its device, and that device the current one."""
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
    """How many of `count` devices are left by the variable ``CUDA_VISIBLE_DEVICES``.

    A list names that many devices (never more than there are), whichever they are: a script written for
    the third GPU of a server shall run, too. As the driver does, reading stops at what is no device.
    """
    if variable is None:
        return count
    named: list[str] = []
    for word in variable.split(","):
        entry = word.strip()
        if not re.match(r"\+?\d|GPU-|MIG-", entry):
            break
        if entry in named:  # the driver takes a device named twice as a mistake and shows none
            return 0
        named.append(entry)
    return min(count, len(named))


def refusal(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises `NotEmulated`, naming what was called and what to do."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotEmulated(f"{name} needs a CUDA device. {instead}")

    return refuse
