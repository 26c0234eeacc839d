"""Numbers on the device, and decisions that are made there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, dtype


def scalar(
    value: float | complex,
    device: torch.device | str | int | None = None,
    dtype: dtype | None = None,
) -> Tensor:
    """A 0-dim tensor of `value`, filled in by a kernel: no copy from the host.

    dtype and device default as in ``torch.tensor``.

    Replaces::

        weight = torch.tensor(0.5, device="cuda")
        weight = ops.scalar(0.5, "cuda")

    Beside a tensor, in arithmetic, a number needs none of this: ``x * 0.5``. A list is made once, before the
    loop.
    """
    return torch.full((), value, device=device, dtype=dtype)


def choose(condition: Tensor, yes: Any, no: Any) -> Any:
    """`yes` where the 0-dim bool `condition` is true, else `no`; both exist already, and neither is read.

    `yes` and `no` are tensors or numbers, or dicts, lists and tuples of such, of one form. Shapes broadcast
    and dtypes are promoted as in ``torch.where``. Each side gets the gradient where it was chosen, else 0
    (which a side whose own derivative is infinite makes NaN).

    Replaces::

        loss = main if flag else main + extra        # reads the flag
        loss = ops.choose(flag, main, main + extra)

    The original wins where one branch is expensive and rarely taken.

    Raises:
        ValueError: `yes` and `no` differ in form, or the condition is not bool.
    """
    if condition.dtype != torch.bool:
        raise ValueError(f"expected a condition of dtype torch.bool, but got {condition.dtype}")
    if isinstance(yes, dict) and isinstance(no, dict) and yes.keys() == no.keys():
        return type(yes)((key, choose(condition, yes[key], no[key])) for key in yes)
    both_lists = isinstance(yes, (list, tuple)) and isinstance(no, (list, tuple))
    if both_lists and type(yes) is type(no) and len(yes) == len(no):
        parts = [choose(condition, a, b) for a, b in zip(yes, no, strict=True)]
        return type(yes)(*parts) if hasattr(yes, "_fields") else type(yes)(parts)
    if isinstance(yes, (dict, list, tuple)) or isinstance(no, (dict, list, tuple)):
        raise ValueError(f"expected two values of the same form, but got {_form(yes)} and {_form(no)}")
    return torch.where(condition, yes, no)


def zero_unless(condition: Tensor, value: Tensor) -> Tensor:
    """`value` where the 0-dim bool `condition` is true, else 0 with a gradient of 0, even if it was NaN.

    Replaces::

        if labels.unique().numel() < 2:
            loss = 0 * loss
        loss = ops.zero_unless(ops.count_unique(labels) >= 2, loss)
    """
    return torch.where(condition, value, 0)


def _form(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, (dict, list, tuple)) else ""
    return f"{type(value).__name__}{length}"
