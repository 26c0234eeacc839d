"""Run an operator whose dtype only CUDA's kernel supports: compute in a wider dtype, then cast back."""

from __future__ import annotations

import re
from typing import Any

import torch

from gapless import trees
from gapless.torch_internals import DisableTorchFunction

Tensor = torch.Tensor
_REFUSED = re.compile(r"\" not implemented for '(\w+)'|(?:_cpu|CPU).*not (?:support|implement)")
_WIDER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float16: (torch.float32,),
    torch.bfloat16: (torch.float32,),
    torch.complex32: (torch.complex64,),
    **dict.fromkeys(
        (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32), (torch.int64, torch.float64)
    ),
    torch.int64: (torch.float64,),
}
"""Dtypes to try instead, in order."""
_DTYPES = {
    "Half": torch.float16, "BFloat16": torch.bfloat16, "ComplexHalf": torch.complex32, "Bool": torch.bool,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
}  # fmt: skip
"""Dtypes by the names in ATen's error messages."""


def is_dtype_refusal(error: BaseException) -> bool:
    """Whether `error` says that the CPU's kernel does not support a dtype."""
    return isinstance(error, (RuntimeError, TypeError)) and bool(_REFUSED.search(str(error)))


def run_widened(func: Any, args: Any, kwargs: dict[str, Any], error: Exception) -> Any:
    """Run `func` on arguments cast to a wider dtype, and cast the results back.

    Raises:
        Exception: `error`, if no wider dtype works either.
    """
    match = _REFUSED.search(str(error))
    named = _DTYPES.get(match[1] or "") if match is not None else None
    dtypes = {tensor.dtype for tensor in trees.tensors((args, kwargs))} & _WIDER.keys()
    for dtype in (
        (named,) if named in dtypes else sorted(dtypes, key=lambda dtype: not dtype.is_floating_point)
    ):
        for wide in _WIDER[dtype]:
            try:
                return _run_as(func, args, kwargs, {dtype: wide})
            except (RuntimeError, TypeError, ValueError):
                continue
    raise error


def _run_as(func: Any, args: Any, kwargs: dict[str, Any], wider: dict[torch.dtype, torch.dtype]) -> Any:
    """Run `func` with the dtypes in `wider` replaced; write in-place changes back to the originals."""

    def widen(tensor: Tensor) -> Tensor:
        return tensor.to(wider.get(tensor.dtype, tensor.dtype))

    with DisableTorchFunction():
        wide = trees.map_tensors((args, kwargs), widen)
        written = [
            (old, new)
            for old, new in zip(trees.tensors((args, kwargs)), trees.tensors(wide), strict=True)
            if old is not new
        ]
        results = func(*wide[0], **wide[1])
        aliased = [argument for argument in func._schema.returns if argument.alias_info is not None]
        if aliased:  # written in place, or into out=
            for old, new in written:
                old.copy_(new)
            originals = {id(new): old for old, new in written}
            return trees.map_tensors(results, lambda tensor: originals.get(id(tensor), tensor))
        dtypes = iter(_result_dtypes(func, args, kwargs))
        return trees.map_tensors(results, lambda tensor: tensor.to(next(dtypes, tensor.dtype)))


def _result_dtypes(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.dtype]:
    """Dtypes of the results by the operator's meta kernel, else that of the first tensor."""
    shapes = trees.map_tensors((args, kwargs), lambda tensor: tensor.to("meta"))
    try:
        return [tensor.dtype for tensor in trees.tensors(func(*shapes[0], **shapes[1]))]
    except (RuntimeError, NotImplementedError, TypeError):
        first = next(trees.tensors((args, kwargs)), None)
        return [] if first is None else [first.dtype]
