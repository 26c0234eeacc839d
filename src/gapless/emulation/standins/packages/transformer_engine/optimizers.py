"""``transformer_engine.pytorch.optimizers``: Adam and SGD over many tensors, as apex has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gapless.emulation.standins.multi_tensor import kernels_for
from gapless.emulation.standins.packages.apex import optimizers as apex
from gapless.emulation.standins.packages.transformer_engine._package import PACKAGE

_MODULE = "transformer_engine.pytorch.optimizers"
PACKAGE.holds(_MODULE, MultiTensorApply=apex.MultiTensorApply, multi_tensor_applier=apex.multi_tensor_applier)
PACKAGE.holds(_MODULE, **kernels_for("transformer_engine"))


@PACKAGE.provides(_MODULE)
class FusedAdam(apex.FusedAdam):
    """Adam, or with `adam_w_mode` AdamW; moments in float32.

    Raises:
        RuntimeError: AMSGrad, master weights or a capturable one.
    """

    _package = "transformer_engine"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        set_grad_none: bool | None = None,
        **_: Any,
    ) -> None:
        super().__init__(
            params, lr, bias_correction, betas, eps, adam_w_mode, weight_decay, amsgrad,
            set_grad_none is not False, capturable, master_weights,
        )  # fmt: skip


@PACKAGE.provides(_MODULE)
class FusedSGD(apex.FusedSGD):
    """SGD with momentum."""

    _package = "transformer_engine"
