"""Numbers that CUDA's kernel takes and the CPU's does not: computed as wider ones, and narrowed again."""

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
_NAMED = {
    "Half": torch.float16, "BFloat16": torch.bfloat16, "ComplexHalf": torch.complex32, "Bool": torch.bool,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
}  # fmt: skip


def refused(error: BaseException) -> bool:
    """Whether `error` says that the CPU's kernel does not take numbers of this type."""
    return isinstance(error, (RuntimeError, TypeError)) and bool(_REFUSED.search(str(error)))


def run(func: Any, args: Any, kwargs: dict[str, Any], error: Exception) -> Any:
    """What `func` gives for its arguments, with wider numbers in between.

    Raises:
        Exception: `error`, where no wider type does it either.
    """
    found = _REFUSED.search(str(error))
    named = _NAMED.get(found[1] or "") if found is not None else None
    given = {one.dtype for one in trees.tensors((args, kwargs))} & _WIDER.keys()
    for dtype in (named,) if named in given else sorted(given, key=lambda one: not one.is_floating_point):
        for wide in _WIDER[dtype]:
            try:
                return _widened(func, args, kwargs, {dtype: wide})
            except (RuntimeError, TypeError, ValueError):
                continue
    raise error


def _widened(func: Any, args: Any, kwargs: dict[str, Any], wider: dict[torch.dtype, torch.dtype]) -> Any:
    def widen(tensor: Tensor) -> Tensor:
        return tensor.to(wider.get(tensor.dtype, tensor.dtype))

    with DisableTorchFunction():
        wide = trees.mapped((args, kwargs), widen)
        written = [
            (old, new)
            for old, new in zip(trees.tensors((args, kwargs)), trees.tensors(wide), strict=True)
            if old is not new
        ]
        made = func(*wide[0], **wide[1])
        results = [one for one in func._schema.returns if one.alias_info is not None]
        if results:  # written in place, or into out=
            for old, new in written:
                old.copy_(new)
            names = {id(new): old for old, new in written}
            return trees.mapped(made, lambda one: names.get(id(one), one))
        wanted = iter(_types(func, args, kwargs))
        return trees.mapped(made, lambda one: one.to(next(wanted, one.dtype)))


def _types(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.dtype]:
    """The types of the results, as the operator's own rule says; [] where it has none."""
    shapes = trees.mapped((args, kwargs), lambda tensor: tensor.to("meta"))
    try:
        return [one.dtype for one in trees.tensors(func(*shapes[0], **shapes[1]))]
    except (RuntimeError, NotImplementedError, TypeError):
        first = next(trees.tensors((args, kwargs)), None)
        return [] if first is None else [first.dtype]
