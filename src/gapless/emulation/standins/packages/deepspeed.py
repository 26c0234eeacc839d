"""DeepSpeed, which can be installed without a GPU: its own optimizers' kernels, which it would build.

The package is needed: only what it compiles has stand-ins. Other operators that it would build refuse when
they are called.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins import multi_tensor
from gapless.emulation.standins.extensions import Extension
from gapless.emulation.standins.launch import LaunchState, launch, without_emulation
from gapless.emulation.support.imports import when_imported
from gapless.emulation.support.patches import Patches


def installed(module: ModuleType, patches: Patches) -> None:
    """Give the optimizers' kernels where the package would build them."""
    when_imported("deepspeed.ops.op_builder.builder", partial(_builders, patches), patches)


def _builders(patches: Patches, module: ModuleType) -> None:
    load = module.OpBuilder.load

    @functools.wraps(load)
    def load_builder(self: Any, *args: Any, **kwargs: Any) -> Any:
        replacement = _KERNELS.get(self.name)
        if replacement is not None:
            return replacement()
        if isinstance(self, module.CUDAOpBuilder) and LaunchState.core is not None:
            LaunchState.core.recorder.extensions.setdefault(self.name)
            return Extension(self.name, LaunchState.core)
        return load(self, *args, **kwargs)

    patches.set(module.OpBuilder, "load", load_builder)


def _lamb(
    param: Tensor, copy: Tensor, first: Tensor, second: Tensor, gradient: Tensor, lr: float, beta1: float,
    beta2: float, most: float, least: float, eps: float, scale: float, step: int, mode: int, correct: int,
    decay: float,
) -> Tensor:  # fmt: skip
    """Update one parameter by LAMB; return the factor from its norms."""
    size = lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if correct else lr

    def body(param: Tensor, copy: Tensor, first: Tensor, second: Tensor, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            g = gradient.float() / scale
            first.copy_(first.float() * beta1 + (1 - beta1) * g)
            second.copy_(second.float() * beta2 + (1 - beta2) * g * g)
            v = second.float()
            bottom = v.sqrt() + eps if mode else (v + eps).sqrt()
            update = first.float() / bottom + decay * param.float()
            norms = param.float().norm(), update.norm()
            factor = (norms[0] / norms[1]).clamp(least, most) if all(map(bool, norms)) else torch.ones(())
            param.copy_(param.float() - size * factor * update)
            if copy.numel():
                copy.copy_(param)
            return factor.reshape(1)

    coefficient: Tensor = launch(
        "deepspeed::lamb_cuda_kernel",
        body,
        param,
        copy,
        first,
        second,
        gradient,
        writes=(param, first, second),
    )
    return coefficient


class _OnHost:
    """Adam for parameters in the host's memory."""

    def __init__(self) -> None:
        self._decoupled: dict[int, bool] = {}

    def create_adam(
        self, number: int, lr: float, beta1: float, beta2: float, eps: float, decay: float, decoupled: bool,
        log: bool = False,
    ) -> int:  # fmt: skip
        self._decoupled[number] = decoupled
        return 0

    def destroy_adam(self, number: int) -> int:
        self._decoupled.pop(number, None)
        return 0

    def adam_update(
        self, number: int, step: int, lr: float, beta1: float, beta2: float, eps: float, decay: float,
        correct: bool, param: Tensor, gradient: Tensor, first: Tensor, second: Tensor,
    ) -> int:  # fmt: skip
        """Update one parameter."""
        with without_emulation(), torch.no_grad():
            multi_tensor.adam_body(
                [[gradient], [param], [first], [second]], lr, step, None, beta1, beta2, eps,
                int(self._decoupled.get(number, True)), int(correct), decay,
            )  # fmt: skip
        return 0


_on_host = _OnHost()
_KERNELS: dict[str, Callable[[], Any]] = {
    "fused_adam": lambda: SimpleNamespace(multi_tensor_adam=partial(multi_tensor.adam, "deepspeed")),
    "fused_lion": lambda: SimpleNamespace(multi_tensor_lion=partial(multi_tensor.lion, "deepspeed")),
    "fused_lamb": lambda: SimpleNamespace(lamb=_lamb),
    "cpu_adam": lambda: _on_host,
}
