"""``flash_attn.losses.cross_entropy`` and the Triton kernel behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gapless.emulation.standins.launch import differentiable
from gapless.emulation.standins.packages.flash_attn._package import PACKAGE


@PACKAGE.provides("flash_attn.ops.triton.cross_entropy")
def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row of ``[rows, classes]``, and its part from the squared log-sum.

    Raises:
        NotImplementedError: the classes are split over a process group.
    """
    if process_group is not None:
        raise NotImplementedError("the stand-in for flash_attn's cross entropy takes no process_group")

    def body(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scaled = logits.float() * logit_scale
        ignored = labels == ignore_index
        total = torch.logsumexp(scaled, -1)
        own = scaled.gather(1, labels.long().masked_fill(ignored, 0)[:, None])[:, 0]
        loss = total - (1 - label_smoothing) * own - label_smoothing * scaled.mean(-1)
        square = (lse_square_scale * total.square()).masked_fill(ignored, 0.0)
        return (loss + lse_square_scale * total.square()).masked_fill(ignored, 0.0), square

    losses: tuple[Tensor, Tensor] = differentiable(
        "flash_attn::cross_entropy_fwd_kernel",
        body,
        logits,
        labels,
        backward="flash_attn::cross_entropy_bwd_kernel",
        constants=1,
    )
    return losses


@PACKAGE.provides("flash_attn.losses.cross_entropy")
class CrossEntropyLoss(torch.nn.Module):
    """Return the loss over ``[rows, classes]``; the mean leaves out ignored rows."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.label_smoothing, self.logit_scale = label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward = lse_square_scale, inplace_backward
        self.process_group = process_group

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        """Return the loss, and with ``return_z_loss`` its part from the squared log-sum."""
        loss, square = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            self.label_smoothing,
            self.logit_scale,
            self.lse_square_scale,
            self.ignore_index,
            self.inplace_backward,
            self.process_group,
        )
        loss = self._reduce(loss, target)
        return (loss, self._reduce(square, target)) if self.return_z_loss else loss

    def _reduce(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
