"""Find torch's own function behind a wrapper that a script put in its place.

torch looks a function up by name when it hands a call to a mode: after ``torch.Tensor.to = wrapper`` the mode
receives `wrapper`, although the real `to`, called by `wrapper`, made the call. Calling what the mode receives
would run the script's code twice.
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


def original_function(function: FunctionType) -> Any:
    """The torch function that `function` replaced; `function` itself if it replaced none."""
    for owner, real in zip(_OWNERS, _real, strict=True):
        for name, value in real.items():
            if owner.__dict__.get(name) is function:
                return value
    return function
