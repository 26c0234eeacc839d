"""Code from outside torch that needs a CUDA device: Triton kernels, borrowed memory.

Each is refused in one sentence that names it. Nothing is imported for it: Triton is watched for, and changed
when the script imports it.
"""

from __future__ import annotations

import functools
from functools import partial
from types import ModuleType
from typing import Any

import torch

from gapless.emulate.imports import when_imported
from gapless.emulate.patches import Patches
from gapless.emulate.refusals import refuse


def install(patches: Patches) -> None:
    """Refuse foreign kernels and borrowed device memory, now and in modules imported later."""
    _borrowed_memory(patches)
    _wrapped_triton(patches)
    for name, change in _CHANGES.items():
        when_imported(name, partial(change, patches), patches)


# -- Triton --------------------------------------------------------------------------------------------


def _triton(patches: Patches, module: ModuleType) -> None:
    """Refuse to launch kernels, and to measure variants of them first."""

    def run(self: Any, *_: Any, **__: Any) -> Any:
        raise refuse(
            f"the Triton kernel {_kernel_name(self)}", "Take the code path without it when checking."
        )

    for name in ("JITFunction", "Autotuner"):
        launcher = getattr(module, name, None)
        if launcher is not None and launcher.__module__ == module.__name__:
            patches.set(launcher, "run", run)


def _kernel_name(kernel: Any) -> str:
    """The name and place of the Python function inside all decorators."""
    while not hasattr(kernel, "__code__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    code = getattr(kernel, "__code__", None)
    name = getattr(kernel, "__name__", "?")
    return f"`{name}` ({code.co_filename}:{code.co_firstlineno})" if code is not None else f"`{name}`"


def _wrapped_triton(patches: Patches) -> None:
    """``torch.library.wrap_triton(kernel)`` is for compilers to look into; eagerly it is the kernel."""
    if hasattr(torch.library, "wrap_triton"):  # since torch 2.6
        patches.set_everywhere(torch.library, "wrap_triton", lambda triton_kernel: triton_kernel)


_CHANGES = {
    "triton.runtime.jit": _triton,
    "triton.runtime.autotuner": _triton,
}


# -- borrowed memory -----------------------------------------------------------------------------------


def _borrowed_memory(patches: Patches) -> None:
    """Refuse to hand device tensors to other CUDA libraries.

    They would take an address of the host's for one of the device's.
    """
    tensor = torch.Tensor
    interface = vars(tensor)["__cuda_array_interface__"]
    export = tensor.__dlpack__
    instead = "Keep the step in torch, or hand over tensor.cpu()."

    def cuda_array_interface(self: torch.Tensor) -> Any:
        if self.is_cuda and not self.is_sparse and not self.requires_grad:
            raise refuse("the memory of a CUDA tensor (`__cuda_array_interface__`)", instead)
        return interface.__get__(self)

    @functools.wraps(export)
    def dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda and not self.requires_grad:
            raise refuse("the memory of a CUDA tensor (`__dlpack__`)", instead)
        return export(self, *args, **kwargs)

    patches.set(tensor, "__cuda_array_interface__", property(cuda_array_interface))
    patches.set(tensor, "__dlpack__", dlpack)
    _between_torch_and_itself(patches, instead)


def _between_torch_and_itself(patches: Patches, instead: str) -> None:
    """``torch.from_dlpack(tensor)`` shares a tensor's memory: an alias on the same device."""
    from_dlpack, to_dlpack = vars(torch)["from_dlpack"], vars(torch.utils.dlpack)["to_dlpack"]

    @functools.wraps(from_dlpack)
    def alias(ext_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(ext_tensor, torch.Tensor) or not ext_tensor.is_cuda or ext_tensor.requires_grad:
            return from_dlpack(ext_tensor, *args, **kwargs)
        shared = ext_tensor.detach()
        if kwargs.get("device") is not None:
            shared = shared.to(kwargs["device"])
        return shared.clone() if kwargs.get("copy") else shared

    def capsule(tensor: Any) -> Any:
        if tensor.is_cuda:
            raise refuse("the memory of a CUDA tensor (`torch.utils.dlpack.to_dlpack`)", instead)
        return to_dlpack(tensor)

    patches.set_everywhere(torch, "from_dlpack", alias)
    patches.set_everywhere(torch.utils.dlpack, "to_dlpack", capsule)
