"""Refuse to share device memory with other CUDA libraries."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gapless.emulation.support.patches import Patches
from gapless.emulation.support.refusals import refuse


def install(patches: Patches) -> None:
    """Refuse ``__cuda_array_interface__`` and DLPack on device tensors, until `patches` are undone."""
    _refuse_borrowed_memory(patches)


def _refuse_borrowed_memory(patches: Patches) -> None:
    """Refuse to hand device tensors to other CUDA libraries.

    They would take the host address for a device address.
    """
    tensor = torch.Tensor
    interface = vars(tensor)["__cuda_array_interface__"]
    export = tensor.__dlpack__
    instead = "Keep the step in PyTorch, or pass tensor.cpu()."

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
    _allow_torch_dlpack(patches, instead)


def _allow_torch_dlpack(patches: Patches, instead: str) -> None:
    """Let ``torch.from_dlpack(tensor)`` return an alias on the same device."""
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
