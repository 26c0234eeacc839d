"""Where calls run: on the plain host, on a GPU, or on the emulated one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gapless.prove.inputs import Input
from gapless.prove.subjects import Instance


@dataclass(frozen=True)
class Place:
    """`inputs` and `modules` are put on these devices; None leaves them where the user put them.

    `gpu` tells whether calls run on a real GPU, whose work goes on after a call has returned.
    """

    name: str
    inputs: torch.device | None = None
    modules: torch.device | None = None
    gpu: bool = False

    def input(self, given: Input) -> Input:
        """`given`, with its tensors here."""
        if self.inputs is None:
            return given
        return given.mapped(lambda path, tensor: moved(tensor, self.inputs))

    def instance(self, instance: Instance) -> None:
        """Put the modules of `instance` here."""
        if self.modules is not None:
            for module in instance.modules().values():
                module.to(self.modules)


def moved(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """`tensor` on `device`, a leaf that requires gradients if it did."""
    if tensor.device == device:
        return tensor
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def gpu_of(given: Input) -> torch.device | None:
    """The GPU that a tensor of `given` is on, a real one or an emulated one; None where none is."""
    return next((tensor.device for _, tensor in given.tensors() if tensor.is_cuda), None)
