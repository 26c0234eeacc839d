"""Fourier transforms in half precision, which CUDA's library supports and the CPU's does not.

Since torch 2.14 CUDA accepts bfloat16 as well, and returns float32's dtype.
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
    tensor: Any = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, Tensor) or tensor.dtype not in _WIDER or not mode.on_device(tensor):
        return func(*args, **kwargs)
    out = kwargs.pop("out", None)
    wide = trees.map_tensors((args, kwargs), lambda value: value.to(_WIDER.get(value.dtype, value.dtype)))
    result = func(*wide[0], **wide[1])
    if tensor.dtype != torch.bfloat16:
        result = result.to(_NARROWER.get(result.dtype, result.dtype))
    return result if out is None else out.resize_(result.shape).copy_(result)


def _register(handler: Handler) -> None:
    for name, function in vars(torch.fft).items():
        if "fft" in name and not name.startswith("_") and not name.endswith(("freq", "shift")):
            handles(function)(handler)


_register(_transform)
