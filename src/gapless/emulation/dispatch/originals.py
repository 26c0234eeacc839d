"""What a script put in the place of torch's own functions, and what stood there before.

torch looks a function up by its name when it hands a call to a mode: after ``torch.Tensor.to = wrapper`` the
mode is told of `wrapper`, although it is the real `to` that asks, called by `wrapper`. To run what it is told
of would run the script's code twice.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
import torch.functional
import torch.nn.functional

_OWNERS: tuple[Any, ...] = (torch.Tensor, torch.nn.functional, torch.functional)
_real: tuple[dict[str, Any], ...] = tuple(
    {name: getattr(owner, name) for name in dir(owner) if callable(getattr(owner, name, None))}
    for owner in _OWNERS
)


def original(function: FunctionType) -> Any:
    """What torch had where `function` stands now; `function` itself where it is torch's own."""
    for owner, real in zip(_OWNERS, _real, strict=True):
        for name, value in real.items():
            if owner.__dict__.get(name) is function:
                return value
    return function
