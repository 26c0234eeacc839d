"""Numbers and decisions on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, dtype


def scalar(
    value: float | complex,
    device: torch.device | str | int | None = None,
    dtype: dtype | None = None,
) -> Tensor:
    """Return a 0-dim tensor of `value`, filled by a kernel: no copy from the host.

    Defaults of dtype and device are those of ``torch.tensor``.

    Replaces::

        weight = torch.tensor(0.5, device="cuda")
        weight = ops.scalar(0.5, "cuda")

    Arithmetic with a tensor does not need it: ``x * 0.5``. Tensors from lists should be created once, before
    the loop.
    """
    return torch.full((), value, device=device, dtype=dtype)


def choose(condition: Tensor, yes: Any, no: Any) -> Any:
    """Return `yes` where the 0-dim bool `condition` is true, else `no`; both are computed, neither is read.

    `yes` and `no` are tensors or numbers, or dicts, lists and tuples of these with the same structure. Shapes
    broadcast and dtypes are promoted as in ``torch.where``. The side that is not chosen gets a gradient of 0
    (NaN if its own derivative is infinite).

    Replaces::

        loss = main if flag else main + extra        # reads the flag
        loss = ops.choose(flag, main, main + extra)

    The original is faster if one branch is expensive and rarely taken.

    Raises:
        ValueError: `yes` and `no` differ in structure, or the condition is not bool.
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
    """Return `value` if the 0-dim bool `condition` is true, else 0 with a gradient of 0, even for NaN.

    Replaces::

        if labels.unique().numel() < 2:
            loss = 0 * loss
        loss = ops.zero_unless(ops.count_unique(labels) >= 2, loss)
    """
    return torch.where(condition, value, 0)


def _form(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, (dict, list, tuple)) else ""
    return f"{type(value).__name__}{length}"
