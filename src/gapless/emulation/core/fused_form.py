"""Find out from an optimizer's class whether its fused form skips its step on the GPU."""

from __future__ import annotations

import inspect
from functools import lru_cache

_SCALING_ATTRIBUTE = "_step_supports_amp_scaling"
"""Attribute set by an optimizer that takes a GradScaler's overflow flag as a tensor."""


@lru_cache(maxsize=64)
def fused_form(kind: type) -> str:
    """Return ``AdamW, fused=False`` for an optimizer whose fused form skips on the GPU, else its name.

    >>> import torch
    >>> fused_form(torch.optim.AdamW), fused_form(torch.optim.RMSprop)
    ('AdamW, fused=False', 'RMSprop')
    """
    skips = any(_SCALING_ATTRIBUTE in getattr(_init_code(base), "co_names", ()) for base in kind.__mro__)
    return f"{kind.__name__}, fused=False" if skips and _takes_fused(kind) else kind.__name__


def _init_code(kind: type) -> object:
    """Return the code object of the class's own ``__init__``, if any."""
    return getattr(vars(kind).get("__init__"), "__code__", None)


def _takes_fused(kind: type) -> bool:
    """Whether ``kind(..., fused=True)`` reaches a class with that parameter."""
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters  # type: ignore[misc]
            if "fused" in parameters:
                return True
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                return False
    return False
