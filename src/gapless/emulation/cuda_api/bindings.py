"""The functions of ``torch._C`` below torch's Python code for CUDA, answered by the emulated device.

Replacing these, not ``torch.cuda.*`` itself, keeps torch's own Python code in use: arguments, checks and
error texts are those of the running torch, and user stacks look as on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless.emulation.cuda_api import settings
from gapless.emulation.cuda_api.memory import CudaMemory
from gapless.emulation.cuda_api.runtime import CUDA_DEVICE_TYPE, Functions, Runtime, refusal
from gapless.emulation.cuda_api.streams import handle_of
from gapless.torch_internals import C

NCCL_VERSION = (2, 29, 7)
"""NCCL of torch 2.13."""

TORCH_ALLOCATES = "Tensors are allocated through PyTorch itself: remove this when the device is emulated."
NO_LIBRARY = "No library can work on an emulated device: remove this when the device is emulated."
_NCCL = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "unique_id", "init_rank")


def cuda(runtime: Runtime, memory: CudaMemory) -> Functions:
    """Return the replacements of ``torch._C._cuda_*``."""
    return {
        **_refused_functions(),
        **_devices(runtime),
        **_streams(runtime),
        **_memory(runtime, memory),
        **settings.bindings(runtime),
        "_nccl_version": lambda: NCCL_VERSION[0] << 32 | NCCL_VERSION[1] << 16 | NCCL_VERSION[2],
        "_nccl_version_suffix": lambda: b"",
    }


def _devices(runtime: Runtime) -> Functions:
    device = runtime.device

    def synchronize() -> None:
        device.wait("cudaDeviceSynchronize", "explicit", call="torch.cuda.synchronize")

    def peers(index: int, peer: int) -> bool:
        return runtime.check(index) != runtime.check(peer)

    def has_context(index: int) -> bool:
        return runtime.is_initialized() and 0 <= index < runtime.device_count()

    capability = device.gpu.capability
    return {
        "_cuda_init": runtime.initialize,
        "_cuda_isInBadFork": runtime.in_bad_fork,
        "_cuda_getDeviceCount": runtime.device_count,
        "_cuda_getDevice": runtime.current,
        "_cuda_setDevice": runtime.select,
        "_cuda_exchangeDevice": runtime.exchange,
        "_cuda_maybeExchangeDevice": runtime.exchange,
        "_cuda_hasPrimaryContext": has_context,
        "_cuda_canDeviceAccessPeer": peers,
        "_cuda_getArchFlags": lambda: " ".join(architectures(capability)),
        "_cuda_getCompiledVersion": lambda: compiled_version(capability),
        "_cuda_synchronize": synchronize,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_ipc_collect": lambda: None,
    }


def _streams(runtime: Runtime) -> Functions:
    def current(index: int) -> tuple[int, int, int]:
        return runtime.current_stream_id(runtime.check(index)), index, CUDA_DEVICE_TYPE

    def select(stream_id: int, device_index: int, device_type: int) -> None:
        runtime.set_current_stream(stream_id, device_index)

    return {
        "_cuda_getCurrentStream": current,
        "_cuda_getCurrentRawStream": lambda index: handle_of(current(index)[0]),
        "_cuda_getDefaultStream": lambda index: (0, runtime.check(index), CUDA_DEVICE_TYPE),
        "_cuda_getStreamFromExternal": lambda data_ptr, index: (data_ptr, *current(index)[1:]),
        "_cuda_setStream": select,
    }


def _memory(runtime: Runtime, memory: CudaMemory) -> Functions:
    def set_fraction(fraction: float, index: int) -> None:
        runtime.memory_fraction[runtime.check(index)] = fraction

    return {
        "_cuda_memoryStats": memory.stats,
        "_cuda_resetPeakMemoryStats": memory.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated,
        "_cuda_hostMemoryStats": memory.host_stats,
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_memorySnapshot": memory.snapshot,
        "_cuda_record_memory_history": memory.record_history,
        "_cuda_record_memory_history_legacy": memory.record_history,
        "_cuda_isHistoryEnabled": lambda: memory.history,
        "_cuda_allocationTraceback": lambda pointer: None,
        "_cuda_attach_out_of_memory_observer": lambda observer: None,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": lambda index: runtime.memory_fraction.get(runtime.check(index), 1.0),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_clearCublasWorkspaces": lambda: None,
    }


def _refused_functions() -> Functions:
    """Functions that raise: what only a real CUDA device can do."""
    names = {
        **{name: (f"torch._C.{name}", NO_LIBRARY) for name in dir(C) if name.startswith("_cuda_")},
        "_cuda_cudaCachingAllocator_raw_alloc": ("torch.cuda.caching_allocator_alloc", TORCH_ALLOCATES),
        "_cuda_cudaCachingAllocator_raw_delete": ("torch.cuda.caching_allocator_delete", TORCH_ALLOCATES),
        "_cuda_cudaHostAllocator": ("torch.cuda.memory._host_allocator", TORCH_ALLOCATES),
        "_cuda_customAllocator": ("torch.cuda.CUDAPluggableAllocator", TORCH_ALLOCATES),
        "_cuda_changeCurrentAllocator": ("torch.cuda.change_current_allocator", TORCH_ALLOCATES),
        "_cuda_getAllocator": ("torch.cuda.memory._get_current_allocator", TORCH_ALLOCATES),
        "_cuda_beginAllocateToPool": ("A memory pool (torch.cuda.MemPool)", TORCH_ALLOCATES),
        "_cuda_beginAllocateCurrentThreadToPool": ("A memory pool (torch.cuda.MemPool)", TORCH_ALLOCATES),
        "_cuda_beginAllocateCurrentStreamToPool": ("A memory pool (torch.cuda.MemPool)", TORCH_ALLOCATES),
        "_cuda_endAllocateToPool": ("A memory pool (torch.cuda.MemPool)", TORCH_ALLOCATES),
        "_cuda_releasePool": ("A memory pool (torch.cuda.MemPool)", TORCH_ALLOCATES),
        "_cuda_getCurrentBlasHandle": ("torch.cuda.current_blas_handle", NO_LIBRARY),
        "_cuda_getCurrentSolverHandle": ("torch.cuda.current_solver_handle", NO_LIBRARY),
        "_cuda_jiterator_compile_and_launch_kernel": (
            "A kernel of torch.cuda.jiterator",
            "Run the eager expression it replaces when the device is emulated.",
        ),
    }
    for name in ("read_file", "get_results", "get_validators"):
        names[f"_cuda_tunableop_{name}"] = (f"torch.cuda.tunable.{name}", NO_LIBRARY)
    for name in _NCCL:
        names[f"_nccl_{name}"] = (f"torch.cuda.nccl.{name}", "Use torch.distributed, which is emulated.")
    return {binding: refusal(*words) for binding, words in names.items()}


def accelerator(runtime: Runtime, memory: CudaMemory, stream_class: Any) -> Functions:
    """``torch._C._accelerator_*``: the same device under its general name."""

    def stream(index: int) -> Any:
        ids = runtime.current_stream_id(runtime.check(index))
        return stream_class(stream_id=ids, device_index=index, device_type=CUDA_DEVICE_TYPE)

    def select(value: Any) -> None:
        runtime.set_current_stream(value.stream_id, value.device_index)

    def synchronize(index: int) -> None:
        if runtime.is_initialized():  # torch documents that nothing happens before
            runtime.check(index)
            runtime.device.wait("cudaDeviceSynchronize", "explicit", call="torch.accelerator.synchronize")

    functions: Functions = {
        "_get_accelerator": lambda *_: torch.device("cuda"),
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_deviceCount": runtime.device_count,  # before torch 2.8
        "_accelerator_getDeviceIndex": runtime.current,
        "_accelerator_setDeviceIndex": lambda index: None if index < 0 else runtime.select(index),
        "_accelerator_exchangeDevice": runtime.exchange,
        "_accelerator_maybeExchangeDevice": runtime.exchange,
        "_accelerator_getDeviceCapability": lambda index: {"supported_dtypes": supported_dtypes()},
        "_accelerator_getStream": stream,
        "_accelerator_setStream": select,
        "_accelerator_synchronizeDevice": synchronize,
        "_accelerator_isAllocatorInitialized": runtime.is_initialized,
        "_accelerator_emptyCache": memory.empty_cache,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetAccumulatedStats": memory.reset_accumulated,
        "_accelerator_resetPeakStats": memory.reset_peak,
        "_accelerator_getMemoryInfo": memory.free_and_total,
        "_accelerator_hooks_device_count": runtime.device_count,
        "_accelerator_hooks_get_current_device": runtime.current,
        "_accelerator_hooks_set_current_device": runtime.select,
        "_accelerator_hooks_exchange_device": runtime.exchange,
        "_accelerator_hooks_maybe_exchange_device": runtime.exchange,
    }
    return functions


def supported_dtypes() -> set[torch.dtype]:
    """The dtypes CUDA supports: all except the quantized ones and integers of unusual width."""
    names = (
        *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    return {getattr(torch, name) for name in names if hasattr(torch, name)}


def compiled_version(capability: tuple[int, int]) -> int:
    """The CUDA version assumed for torch's build, as an integer; 13 dropped GPUs older than Turing."""
    return 13000 if capability >= (7, 5) else 12060


def architectures(capability: tuple[int, int]) -> list[str]:
    """Architectures that torch's wheels are built for (torch.cuda.PYTORCH_RELEASES_CODE_CC)."""
    old = ("50", "60", "70", "75", "80", "86", "90")
    new = ("75", "80", "86", "90", "100", "120")
    return [f"sm_{number}" for number in (new if compiled_version(capability) == 13000 else old)]
