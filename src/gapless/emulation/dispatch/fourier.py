"""Fourier transforms of half precision, which CUDA's library takes and the CPU's does not.

Since torch 2.14 it takes bfloat16 as well, whose transform has the numbers of float32's.
"""

from __future__ import annotations

from typing import Any

import torch

from gapless import trees
from gapless.emulation.dispatch.functions import FunctionMode, Handler, handles
from gapless.torch_internals import VERSION

Tensor = torch.Tensor
_WIDER = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_NARROWER = {wide: narrow for narrow, wide in _WIDER.items()}
if VERSION >= (2, 14):
    _WIDER[torch.bfloat16] = torch.float32


def _transform(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given: Any = args[0] if args else kwargs.get("input")
    if not isinstance(given, Tensor) or given.dtype not in _WIDER or not mode.on_device(given):
        return func(*args, **kwargs)
    out = kwargs.pop("out", None)
    wide = trees.mapped((args, kwargs), lambda one: one.to(_WIDER.get(one.dtype, one.dtype)))
    made = func(*wide[0], **wide[1])
    if given.dtype != torch.bfloat16:
        made = made.to(_NARROWER.get(made.dtype, made.dtype))
    return made if out is None else out.resize_(made.shape).copy_(made)


def _register(handler: Handler) -> None:
    for name, function in vars(torch.fft).items():
        if "fft" in name and not name.startswith("_") and not name.endswith(("freq", "shift")):
            handles(function)(handler)


_register(_transform)
