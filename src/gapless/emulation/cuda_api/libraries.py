"""Stand-ins for CUDA's libraries: runtime bindings, NVTX, NVML readings, copies between devices."""

# The names are those of the libraries.
# ruff: noqa: N802, N815

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch

from gapless.emulation.cuda_api.memory import CudaMemory
from gapless.emulation.cuda_api.runtime import Runtime, refusal
from gapless.torch_internals import device_index


class Status(enum.IntEnum):
    """Status codes of the CUDA runtime."""

    success = 0
    invalid_value = 1
    invalid_device = 101
    not_ready = 600


_ERROR_TEXT = {
    Status.success: "no error",
    Status.invalid_value: "invalid argument",
    Status.invalid_device: "invalid device ordinal",
    Status.not_ready: "device not ready",
}


class Cudart:
    """Stands in for ``torch.cuda.cudart()``, the CUDA runtime functions that torch binds."""

    @property
    def cudaError(self) -> type[Status]:
        """The status codes."""
        return Status

    def __init__(self, runtime: Runtime, memory: CudaMemory) -> None:
        self._runtime = runtime
        self._memory = memory

    def cudaGetErrorString(self, error: int) -> str:
        """The text of a status code."""
        texts = {int(code): text for code, text in _ERROR_TEXT.items()}
        return texts.get(int(error), "unrecognized error code")

    def cudaProfilerStart(self) -> Status:
        """Do nothing: there is no CUDA profiler to switch."""
        return Status.success

    def cudaProfilerStop(self) -> Status:
        """Do nothing: there is no CUDA profiler to switch."""
        return Status.success

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> Status:
        """Page-lock memory, and count a wait of the host."""
        self._runtime.device.wait("cudaHostRegister", "explicit", call="torch.cuda.cudart().cudaHostRegister")
        return Status.success

    def cudaHostUnregister(self, ptr: int) -> Status:
        """Undo `cudaHostRegister`."""
        return Status.success

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Free and total bytes."""
        return self._memory.free_and_total(device)

    cudaStreamCreate = cudaStreamDestroy = refusal(
        "A stream made through torch.cuda.cudart()", "Use torch.cuda.Stream."
    )


class Nvtx:
    """Stands in for ``torch._C._nvtx``: accepts ranges and ignores them."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._handles = itertools.count(1)

    def rangePushA(self, message: str) -> int:
        """Depth of the range that begins."""
        depth: int = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        return depth

    def rangePop(self) -> int:
        """Depth of the range that ends."""
        self._local.depth = getattr(self._local, "depth", 0) - 1
        return int(self._local.depth)

    def rangeStartA(self, message: str) -> int:
        """A handle for the range."""
        return next(self._handles)

    def deviceRangeStart(self, message: str, stream: int = 0) -> int:
        """A handle for the range."""
        return next(self._handles)

    def rangeEnd(self, handle: int) -> None:
        """Accepted."""

    def deviceRangeEnd(self, handle: int, stream: int = 0) -> None:
        """Accepted."""

    def markA(self, message: str) -> None:
        """Accepted."""


def sensors(runtime: Runtime, memory: CudaMemory) -> dict[str, Any]:
    """NVML readings: memory is that of the emulation, all else returns 0 and adds a note."""

    def reading(name: str) -> Any:
        def read(device: Any = None) -> int:
            _index(runtime, device)
            text = f"torch.cuda.{name}() has nothing to measure on the emulated device and returned 0"
            runtime.device.note(text)
            return 0

        read.__name__ = name
        return read

    names = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
    return {
        **{name: reading(name) for name in names},
        "device_memory_used": lambda device=None: memory.used_on_device(_index(runtime, device)),
        "list_gpu_processes": lambda device=None: memory.processes(_index(runtime, device)),
    }


def _index(runtime: Runtime, device: Any) -> int:
    return runtime.check(device_index(device, optional=True))


def copies() -> dict[str, Any]:
    """The copy functions of ``torch._C`` that ``torch.cuda.comm`` and ``DataParallel`` call."""
    return {
        "_broadcast": _broadcast,
        "_broadcast_coalesced": _broadcast_coalesced,
        "_broadcast_out": _broadcast_out,
        "_scatter": _scatter,
        "_scatter_out": _scatter_out,
        "_gather": _gather,
        "_gather_out": _gather_out,
    }


def _at(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor.to("cpu" if index < 0 else torch.device("cuda", index), non_blocking=index >= 0)


def _fill(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [_at(tensor, index) for index in devices]


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int = 0
) -> list[list[torch.Tensor]]:
    return [[_at(tensor, index) for tensor in tensors] for index in devices]


def _broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    _fill(out, [tensor] * len(out))
    return out


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], sizes: Any = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    pieces = tensor.chunk(len(devices), dim) if sizes is None else tensor.split(list(sizes), dim)
    return [_at(piece, index) for piece, index in zip(pieces, devices, strict=False)]


def _scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Any = None) -> Any:
    _fill(out, tensor.split([target.size(dim) for target in out], dim))
    return out


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: Any = None) -> torch.Tensor:
    index = torch.cuda.current_device() if destination is None else destination
    return torch.cat([_at(tensor, index) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    _fill(out.split([tensor.size(dim) for tensor in tensors], dim), tensors)
    return out
