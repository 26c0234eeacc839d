"""What of an optimizer costs time, and the remedy: shared by the rules of launches and of a busy CPU."""

from __future__ import annotations

import re

_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
ZEROING = "zero_grad"
"""The part that clears the gradients."""
_OPTIMIZER_FILE = re.compile(r"torch/optim/(?!lr_scheduler|swa_utils)(\w+)\.py")
_FUSED_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
"""Optimizers with `fused=True` on CUDA since torch 2.0 (SGD: 2.3), by the name of their file."""

_FOREACH_OPTIMIZERS = {
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""Optimizers of `torch.optim` that take `foreach`."""


def optimizer_part(words: str) -> str | None:
    """Return what of an optimizer runs at a place, by the names there: its class name if it steps, "" if the
    class is unknown, or ``zero_grad``; None if no optimizer does."""
    step, file = _OPTIMIZER_STEP.search(words), _OPTIMIZER_FILE.search(words)
    if step:
        return step.group(1)
    if ZEROING in words:
        return ZEROING
    return _FUSED_OPTIMIZERS.get(file.group(1), "") if file else None


def optimizer_remedy(part: str) -> tuple[str, str]:
    """Return what to write instead of this `part` of an optimizer, also in a few words."""
    if part == ZEROING:
        return (
            "`optimizer.zero_grad(set_to_none=True)`, the default since torch 2.0, launches nothing: it "
            "drops the gradients instead of filling them with zeros",
            "`zero_grad(set_to_none=True)`",
        )
    if part in _FUSED_OPTIMIZERS.values():
        return (
            f"`torch.optim.{part}(..., fused=True)` updates many parameters with one kernel; the results "
            "differ only by rounding",
            f"`torch.optim.{part}(..., fused=True)`",
        )
    if part and part not in _FOREACH_OPTIMIZERS:
        return (
            "your own optimizer launches kernels for each parameter: use the `torch._foreach_…` "
            "functions, or compile the update (`step = torch.compile(optimizer.step)`)",
            "compile the update: `step = torch.compile(optimizer.step)`",
        )
    return (
        "keep `foreach` at its default (many parameters with one kernel, if the optimizer supports it), or "
        "compile the update: `step = torch.compile(optimizer.step)`",
        "keep the optimizer's `foreach` at its default",
    )
