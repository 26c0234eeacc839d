"""Settings of CUDA libraries: stored and returned, without effect here."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gapless.emulation.cuda_api.runtime import Functions, Runtime
from gapless.emulation.support.patches import Patches
from gapless.torch_internals import C

_CUBLAS_WORKSPACE = 4096 * 2 * 1024 + 16 * 8 * 1024
"""aten/src/ATen/cuda/CublasHandlePool.cpp: default workspace before Hopper, in bytes."""

_CUFFT_PLANS = 4096
"""aten/src/ATen/native/cuda/CuFFTPlanCache.h: CUFFT_DEFAULT_CACHE_SIZE."""

# Setter, getter, and what a CUDA build of torch 2.13 answers before anyone has set anything.
_SETTINGS: tuple[tuple[str, str, Any], ...] = (
    ("_cuda_setMemoryMetadata", "_cuda_getMemoryMetadata", ""),
    ("_cuda_set_cudnn_benchmark_limit", "_cuda_get_cudnn_benchmark_limit", 10),
    ("_cudnn_set_conv_benchmark_empty_cache", "_cuda_get_conv_benchmark_empty_cache", True),
    ("_cuda_cudaCachingAllocator_enable", "_cuda_cudaCachingAllocator_is_enabled", True),
    ("_accelerator_setAllocatorSettings", "_accelerator_getAllocatorSettings", ""),
    ("_cuda_tunableop_enable", "_cuda_tunableop_is_enabled", False),
    ("_cuda_tunableop_tuning_enable", "_cuda_tunableop_tuning_is_enabled", True),
    ("_cuda_tunableop_set_max_tuning_duration", "_cuda_tunableop_get_max_tuning_duration", 30),
    ("_cuda_tunableop_set_max_tuning_iterations", "_cuda_tunableop_get_max_tuning_iterations", 100),
    ("_cuda_tunableop_set_rotating_buffer_size", "_cuda_tunableop_get_rotating_buffer_size", 0),
    ("_cuda_tunableop_set_filename", "_cuda_tunableop_get_filename", ""),
    ("_cuda_record_untuned_enable", "_cuda_record_untuned_is_enabled", False),
    ("_cuda_setCublasWorkspaceSize", "_cuda_getCublasWorkspaceSize", _CUBLAS_WORKSPACE),
    ("_cuda_setCublasLtWorkspaceSize", "_cuda_getCublasLtWorkspaceSize", 1024 * 1024),
)


def bindings(runtime: Runtime) -> Functions:
    """Return the setters and getters of ``torch._C``."""
    functions: Functions = {}
    for setter, getter, default in _SETTINGS:
        functions[setter], functions[getter] = _setter_and_getter(default)
    for library in ("Cublas", "CublasLt"):
        default = functions[f"_cuda_get{library}WorkspaceSize"]()
        functions[f"_cuda_reset{library}WorkspaceSize"] = partial(
            functions[f"_cuda_set{library}WorkspaceSize"], default
        )
    for kind in ("linalg", "blas"):  # a build without CUDA refuses all but the default
        getter = f"_get_{kind}_preferred_backend"
        if hasattr(C, getter):
            functions[f"_set_{kind}_preferred_backend"], functions[getter] = _setter_and_getter(
                getattr(C, getter)()
            )
    functions["_cuda_tunableop_set_numerical_check_tolerances"] = lambda *_: None
    functions["_cuda_set_sync_debug_mode"] = runtime.set_sync_debug_mode
    functions["_cuda_get_sync_debug_mode"] = lambda: runtime.sync_debug_mode
    return functions


def _setter_and_getter(default: Any) -> tuple[Any, Any]:
    kept = [default]

    def keep(value: Any, *_: Any) -> None:
        kept[0] = value

    return keep, lambda: kept[0]


def install_plan_caches(patches: Patches) -> None:
    """Emulate ``torch.backends.cuda.cufft_plan_cache``: empty caches with a settable maximal size."""
    cache = getattr(torch.backends.cuda, "cuFFTPlanCache", None)
    if cache is None:
        return
    sizes: dict[int, int] = {}
    read_only = vars(cache)["size"].setter
    prop: Any = torch.backends.cuda.cuFFTPlanCacheAttrContextProp
    patches.set(cache, "size", prop(lambda index: 0, read_only))
    patches.set(cache, "max_size", prop(lambda index: sizes.get(index, _CUFFT_PLANS), sizes.__setitem__))
    patches.set(cache, "clear", lambda self: None)
    # It makes its list of caches once, for as many devices as there are then.
    patches.set(torch.backends.cuda, "cufft_plan_cache", torch.backends.cuda.cuFFTPlanCacheManager())
