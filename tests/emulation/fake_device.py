"""A small device of the tests' own, for what needs no kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gapless.emulation import cuda_api
from gapless.emulation.graphs.state import Graphs
from gapless.emulation.races.checker import Checker
from gapless.emulation.recording.recorder import WaitRecorder
from gapless.emulation.support.patches import Patches
from gapless.model import gpus

MIB = 1024 * 1024


class FakeDevice:
    """Two GPUs: placement by storage address, memory as the test says, a clock that ticks when read."""

    def __init__(self, gpu: gpus.Gpu = gpus.DEFAULT, count: int = 2) -> None:
        self.gpu = gpu
        self.device_count = count
        self.live = [0] * count
        self.peak = [0] * count
        self.waits: list[tuple[str, str, str]] = []
        self.notes: list[str] = []
        self.now = 0.0
        self.races = Checker({})
        self.recorder = WaitRecorder()
        self.graphs = Graphs(self)
        self._placed: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._current = threading.local()

    tick = 0

    def current_device(self) -> int:
        return getattr(self._current, "index", 0)

    def set_current_device(self, index: int) -> None:
        self._current.index = index

    def device_of(self, tensor: torch.Tensor) -> int:
        return self._placed.get(tensor.untyped_storage().data_ptr(), (None, -1))[1]

    def place(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._placed[storage.data_ptr()] = (storage, index)
        return tensor

    def allocated(self, index: int) -> int:
        return self.live[index]

    def peak_allocated(self, index: int) -> int:
        return self.peak[index]

    def reset_peak(self, index: int) -> None:
        self.peak[index] = self.live[index]

    def note_query(self) -> None:
        pass

    def take_freed_bytes(self, index: int) -> int:
        return 0

    def holds(self, size: int, index: int = 0) -> None:
        self.live[index] = size
        self.peak[index] = max(self.peak[index], size)

    def wait(self, operator: str, mechanism: str, *, call: str = "", **details: Any) -> None:
        self.waits.append((operator, mechanism, call))

    def record_stream_call(self, kind: str, stream: int, event: int = 0, index: int = 0) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def clock(self) -> float:
        self.now += 0.25
        return self.now

    def waited(self) -> list[tuple[str, str, str]]:
        waits, self.waits = self.waits, []
        return waits


@contextmanager
def installed(fake: FakeDevice) -> Iterator[FakeDevice]:
    """``torch.cuda`` speaks of `fake` inside the block."""
    patches = Patches()
    try:
        cuda_api.install(fake, patches)
        yield fake
    finally:
        patches.undo()
