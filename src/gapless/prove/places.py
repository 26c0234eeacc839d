"""Where calls run: on the host, on a GPU, or on the emulated one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gapless.prove.inputs import Input
from gapless.prove.subjects import Instance


@dataclass(frozen=True)
class CallPlace:
    """Devices for `inputs` and `modules`; None leaves them where the user put them.

    `gpu`: calls run on a real GPU, whose work continues after a call has returned.
    """

    name: str
    inputs: torch.device | None = None
    modules: torch.device | None = None
    gpu: bool = False

    def place_input(self, call_input: Input) -> Input:
        """Return `call_input` with its tensors on the device for inputs."""
        if self.inputs is None:
            return call_input
        return call_input.map_tensors(lambda path, tensor: move_leaf(tensor, self.inputs))

    def place_instance(self, instance: Instance) -> None:
        """Move the modules of `instance` to the device for modules."""
        if self.modules is not None:
            for module in instance.modules().values():
                module.to(self.modules)


def move_leaf(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Return `tensor` on `device` as a leaf that requires gradients if it did."""
    if tensor.device == device:
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def gpu_of(call_input: Input) -> torch.device | None:
    """Return the GPU, real or emulated, of the first tensor on one; None if there is none."""
    return next((tensor.device for _, tensor in call_input.tensors() if tensor.is_cuda), None)
