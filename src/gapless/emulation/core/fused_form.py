"""Whether an optimizer has a fused form that skips its step on the GPU, read off its class."""

from __future__ import annotations

import inspect
from functools import lru_cache

_SKIPS = "_step_supports_amp_scaling"
"""What an optimizer sets on itself to take the overflow flag of a GradScaler as a tensor."""


@lru_cache(maxsize=64)
def fused_form(kind: type) -> str:
    """``AdamW, fused=False`` for an optimizer that takes `fused` and then skips on the GPU, else its name.

    >>> import torch
    >>> fused_form(torch.optim.AdamW), fused_form(torch.optim.RMSprop)
    ('AdamW, fused=False', 'RMSprop')
    """
    skips = any(_SKIPS in getattr(_code(one), "co_names", ()) for one in kind.__mro__)
    return f"{kind.__name__}, fused=False" if skips and _takes_fused(kind) else kind.__name__


def _code(kind: type) -> object:
    return getattr(vars(kind).get("__init__"), "__code__", None)


def _takes_fused(kind: type) -> bool:
    """Whether ``kind(..., fused=True)`` reaches the class that knows it."""
    for one in kind.__mro__:
        if "__init__" in vars(one):
            parameters = inspect.signature(one.__init__).parameters  # type: ignore[misc]
            if "fused" in parameters:
                return True
            if all(given.kind is not given.VAR_KEYWORD for given in parameters.values()):
                return False
    return False
