"""A Triton driver that reports the emulated GPU and loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gapless.emulation.core.core import EmulationCore
from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse
from gapless.model.gpus import Gpu


def install(core: EmulationCore, patches: Patches, module: Any) -> None:
    """Make an emulated driver the active one in `module`, ``triton.runtime.driver``."""
    config = module.driver
    name = "_active" if "_active" in vars(config) else "active"
    patches.set(config, name, TritonDriver(core.gpu))


class _Utilities:
    """Stands in for the driver's `utils`: device properties and binary loading."""

    def __init__(self, gpu: Gpu) -> None:
        self._properties = {
            "max_shared_mem": gpu.shared_memory_per_block_optin,
            "max_num_regs": 65536,
            "multiprocessor_count": gpu.multi_processor_count,
            "warpSize": gpu.warp_size,
            "sm_clock_rate": gpu.clock * 1000,
            "mem_clock_rate": round(gpu.bandwidth * 4e6 / gpu.memory_bus),  # kHz, two transfers a cycle
            "mem_bus_width": gpu.memory_bus,
        }

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(self._properties)

    def load_binary(self, name: str, *_: Any) -> Any:
        raise refuse(f"the compiled code of the kernel `{name}`", "Launch it as kernel[grid](…).")

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""


class TritonDriver:
    """Stands in for Triton's ``CudaDriver``."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.utils = _Utilities(gpu)

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._gpu.capability
        return GPUTarget("cuda", major * 10 + minor, self._gpu.warp_size)

    def get_current_device(self) -> int:
        return int(torch.cuda.current_device())

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._gpu.capability

    def get_current_stream(self, device: int | None = None) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self.get_current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton.testing import do_bench

        benchmarker: Callable[..., Any] = do_bench
        return benchmarker

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """One element: there is no cache to clear (a real GPU's takes 256 MB)."""
        return torch.empty(1, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        raise refuse("a launcher of compiled kernels", "Launch it as kernel[grid](…).")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "CUdeviceptr" if ty.startswith("*") else ty

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        return args
